"""One diagnosis while it is made: what is measured, in which order, within which budget."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from normlab.errors import UnsupportedError
from normlab.probes.clock import Clock, OutOfTime
from normlab.probes.diagnosis import Diagnosis, HowMeasured
from normlab.probes.inputs import batches as parts
from normlab.probes.inputs.losses import Loss, LossReading, call, pick, token_ids
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.judge.rules import judge
from normlab.probes.judge.verdicts import LIMITS, SEVERITIES, ModelEvidence
from normlab.probes.measure import gradients
from normlab.probes.measure.derivatives import read_derivatives
from normlab.probes.measure.gradients import Gradients, suspects
from normlab.probes.measure.outputs import listening, read_outputs
from normlab.probes.measure.readings import Readings
from normlab.probes.measure.skips import SkipEffects, SkipReport, skip_layers, skip_report
from normlab.probes.measure.stream import StreamStatistics
from normlab.probes.measure.summary import LengthRow, largest, summarise
from normlab.probes.measure.table import Rows, joined
from normlab.probes.measure.trials.repair import RepairReading, read_repair
from normlab.probes.measure.trials.run import TrialRow, UndoneReading, catalogue, halves, run_trials
from normlab.probes.measure.twin.compare import read_twin
from normlab.probes.measure.twin.rows import read_rows_apart, scales_by_batch
from normlab.probes.measure.weights import (
    duplicates,
    expert_twins,
    matrix_twins,
    nonfinite_weights,
    read_weights,
    scale_twins,
)
from normlab.probes.measure.weights.experts import read_experts
from normlab.probes.measure.weights.functions import read_functions
from normlab.probes.measure.weights.gains import read_eps
from normlab.probes.measure.weights.response import read_response
from normlab.probes.notes import notes_of, unmeasured
from normlab.probes.passes import read_attention, read_mixing, read_stream, theory_of
from normlab.probes.precision import count_parameters, in_float32, widened, widens
from normlab.probes.trace.hooks import Layout, slow_path
from normlab.probes.trace.identity import verify
from normlab.probes.trace.locate import locate_all
from normlab.probes.trace.roles import LayerRoles
from normlab.probes.trace.structure.settings import read_settings
from normlab.probes.trace.verbs import SchemeLayout

SMALL = 20_000_000  # parameters up to which a pass costs next to nothing
TWIN_TOKENS = 256  # of two rows: pages and positions that go wrong late are seen too
SKIP_TOKENS, SKIP_TOKENS_LARGE = 512, 384
SLOPE_TOKENS, SLOPE_TOKENS_LARGE = 128, 64  # seventeen passes over these
GLANCE = 32  # tokens of a large model on which most trials are given up
TRIED = 16  # windows for trials: one half to choose on, the other to test on


class Examination:
    """One diagnosis while it is made."""

    def __init__(self, model: nn.Module, batches: list[Any], options: DiagnoseOptions, say: Clock) -> None:
        self.model, self.batches, self.options, self.say = model, batches, options, say
        first = next(model.parameters(), torch.empty(0))
        self.stored, self.device = str(first.dtype).removeprefix("torch."), str(first.device)

    def run_as_stored(self, name: str, roles: LayerRoles | None) -> Diagnosis:
        """A model in half precision is judged by the same weights in float32, and told what its own rounding changes."""
        small = parts.first_rows(self.batches[0])
        parts.check_runs(self.model, small)
        if not widens(self.model, small):
            return self.run(name, roles)
        own = self._first_loss()
        with in_float32(self.model):
            self.batches = [widened(batch) for batch in self.batches]
            exact = self._first_loss()
            found = self.run(name, roles)
        beside = (
            f": its loss on a piece of the first batch is {own:.4f}, in float32 {exact:.4f}" if own and exact else ""
        )
        note = f"stored in {self.stored} and measured in float32, with the same weights{beside}"
        return replace(found, notes=(*found.notes, note))

    def _first_loss(self) -> float | None:
        loss = _loss(self.options, self.model, self.batches[0])
        with torch.no_grad(), slow_path():
            return None if loss is None else float(loss(self.model, parts.pieces(self.batches[:1], loss)[0]))

    def run(self, name: str, roles: LayerRoles | None) -> Diagnosis:
        """Every stack of layers by itself: of an encoder-decoder both halves, the decoder with the encoder beside it."""
        small = parts.first_rows(self.batches[0])
        layouts = locate_all(self.model, lambda: call(self.model, small), roles=roles)
        *more, last = [self._stack(name, layout, small) for layout in layouts]
        if not more:
            return last
        halves = sorted((*more, last), key=lambda half: SEVERITIES.index(half.worst or SEVERITIES[-1]))
        verdicts = [
            replace(verdict, title=f"in the {half.stack}, {verdict.title}")
            for half in halves  # the worse one first; within a half causes stand in front
            for verdict in half.verdicts
        ]
        verdicts.sort(key=lambda verdict: verdict.severity == "note")
        return replace(last, verdicts=tuple(verdicts), more=tuple(more))

    def _stack(self, name: str, layout: Layout, small: Any) -> Diagnosis:
        model, batches, options, say = self.model, self.batches, self.options, self.say
        say("checking the residual identity")
        identity = verify(layout, lambda: call(model, small))
        say("streaming statistics")
        loss = _loss(options, model, batches[0])
        heard = listening(loss)
        stream = read_stream(layout, batches, heard)
        rows, mixing = read_mixing(layout, small, stream.rows())
        broken = nonfinite_weights(model)
        healthy = not broken and not any(row.nonfinite for row in rows)
        lengths: tuple[LengthRow, ...] = ()
        readings = self._weights(layout) if healthy else Readings()
        readings = replace(readings, breaches=identity.breaches, uncalled=identity.uncalled)
        if options.attention and healthy and say.allows("attention and experts"):
            say("attention")
            rows, lengths, heads, masks = read_attention(layout, batches, rows, options, say)
            readings = replace(readings, heads=heads, masks=masks, experts=read_experts(layout, batches[:1]))
        loss = loss if healthy else None
        reading, causal = None, None
        if loss is not None and say.allows("loss and gradients"):
            say("gradients")
            found = self._gradients(layout, loss)
            rows, reading = joined(rows, found.rows), LossReading(loss.name, found.loss, loss.chance)
            said = read_outputs(layout, batches, loss, heard)
            few = SLOPE_TOKENS if self.small else SLOPE_TOKENS_LARGE
            slopes = read_derivatives(layout, parts.shortened(self._pieces(loss)[0], few), loss)
            readings = replace(readings, pulls=found.pulls, noise=found.noise, output=said, derivatives=slopes)
        if loss is not None and options.skips and say.allows("skipping layers"):
            causal = self._skips(layout, loss, stream, rows)
        if causal is not None:
            rows = [replace(row, skip_loss_change=causal.change[row.layer]) for row in rows]
        if causal is not None and loss is not None and say.allows("undoing accidents on trial"):
            readings = replace(readings, trials=self._trials(layout, loss, readings), repair=self._repair(layout, loss))
        summary = summarise(rows, lengths)
        evidence = ModelEvidence(
            rows=rows,
            summary=summary,
            placement=layout.placement,
            nonfinite_weights=tuple(broken),
            duplicates=tuple(duplicates(layout)),
            causal=causal,
            readings=readings,
            start=stream.embedding.norm_median or 0.0,
            norms=layout.norms,
        )
        return Diagnosis(
            name=name,
            architecture=layout.architecture,
            placement=layout.placement,
            inferred=layout.inferred,
            identity_error=largest(
                [*identity.errors, math.nan if mixing is None or mixing.error is None else mixing.error]
            ),
            embedding=stream.embedding,
            layers=tuple(rows),
            summary=summary,
            lengths=lengths,
            angular=stream.angular_matrix(),
            causal=causal,
            loss=reading,
            theory=theory_of(layout, stream, rows),
            mixing=mixing,
            how=self._how(stream),
            notes=(*notes_of(layout, loss, healthy, causal), *unmeasured(rows), *say.note()),
            verdicts=judge(evidence),
            readings=readings,
            stack=layout.stack,
        )

    def _weights(self, layout: Layout) -> Readings:
        seen = [ids.flatten() for ids in map(token_ids, self.batches) if ids is not None]
        found = read_weights(layout, torch.unique(torch.cat(seen)) if seen else None)
        small = parts.first_rows(self.batches[0])
        tiny = parts.first_rows(self.batches[0], rows=1, tokens=24)
        tokens, repeats = read_functions(layout, lambda: call(self.model, tiny))
        twin = read_twin(layout, self.model, parts.first_rows(self.batches[0], tokens=TWIN_TOKENS))
        shared = scales_by_batch(self.model)
        return Readings(
            matrices=found.matrices,
            gains=found.gains,
            embedding=found.embedding,
            head=found.head,
            norms=read_eps(layout, lambda: call(self.model, small)),
            expert_twins=expert_twins(layout),
            responses=read_response(layout, lambda: call(self.model, small)),
            twins=matrix_twins(layout),
            scales=scale_twins(layout),
            tokens=tokens,
            repeats=repeats,
            settings=read_settings(layout),
            twin=twin,
            rows_apart=None if twin is not None or shared else read_rows_apart(self.model, self.batches[0]),
        )

    def _trials(self, layout: Layout, loss: Loss, readings: Readings) -> tuple[TrialRow, ...]:
        """Chosen on half of the windows, tested on the others; what surely helps is examined while it is in place."""
        if isinstance(layout, SchemeLayout) or readings.output is None:
            return ()
        self.say("undoing accidents on trial")
        if self.small:
            windows = parts.windows(self.batches, loss, count=TRIED, tokens=2 * self.options.gradient_tokens)
            chosen, tested = halves(windows)
            every = range(len(layout.layers))
            pulls = gradients.measure(layout, chosen, loss).pulls if readings.pulls else ()

            def examine() -> UndoneReading:
                return UndoneReading(read_outputs(layout, self.batches, loss), self._repair(layout, loss))

            trials = catalogue(layout, chosen, loss, suspects=every, pulls=pulls)
            return run_trials(layout, trials, chosen, tested, loss, examine=examine)
        # Each pass costs: single layers are tried where gradients point at them, if they do at all.
        alike = readings.noise is not None and readings.noise.high < LIMITS.suspicious
        layers = suspects(readings.pulls, len(layout.layers)) if alike else ()
        first, *others = self._portions(loss)
        few = parts.shortened(first, GLANCE)
        # Of a few tokens too few are hidden to say anything.
        glance = None if loss.name == "masked" or few is first else few
        trials = catalogue(layout, [first], loss, suspects=layers, pulls=readings.pulls)
        return run_trials(layout, trials, [first], others, loss, glance=glance)

    def _repair(self, layout: Layout, loss: Loss) -> RepairReading | None:
        if not self.small or loss.targets is None or isinstance(layout, SchemeLayout):
            return None
        return read_repair(layout, self._pieces(loss, 4), loss)

    @property
    def small(self) -> bool:
        return sum(parameter.numel() for parameter in self.model.parameters()) < SMALL

    def _portions(self, loss: Loss) -> list[Any]:
        """What is read again and again with something left out or changed."""
        usual = SKIP_TOKENS if self.small else SKIP_TOKENS_LARGE
        return parts.skip_batches(self.batches, loss, self.options.skip_tokens or usual)

    def _pieces(self, loss: Loss, count: int = 8) -> list[Any]:
        """Windows for gradients, in parts that can be compared; of a small model twice as many."""
        tokens = self.options.gradient_tokens * (2 if self.small else 1)
        return parts.pieces(parts.some(self.batches, tokens, loss), loss, count=count)

    def _gradients(self, layout: Layout, loss: Loss) -> Gradients:
        portion = self._pieces(loss)
        try:
            return gradients.measure(layout, portion, loss)
        except (UnsupportedError, NotImplementedError, RuntimeError) as error:  # quantised weights have none
            layout.notes.append(f"gradients were left out: {str(error).splitlines()[0]}")
            with torch.no_grad(), slow_path():
                values = [float(loss(self.model, batch)) for batch in portion]
            return Gradients([], sum(values) / len(values), ())

    def _skips(self, layout: Layout, loss: Loss, stream: StreamStatistics, rows: Rows) -> SkipReport | None:
        """Skip layers on several small batches, so that each effect has a standard error.

        Of a large model, layers that most of the batches show to matter are left alone then, and runs of layers are
        tried only where one layer does not matter. None if the budget ends before two batches are done: one alone has
        no error bar to judge by.
        """
        portions = self._portions(loss)
        candidates = parts.candidate_runs(stream.angular_matrix())
        depth, effects = len(rows), list[SkipEffects]()
        shared, half = len(layout.layers) == 1 < depth, max(2, 3 * len(portions) // 4)
        only, runs = None, candidates if self.small else []
        for number, portion in enumerate(portions):
            if number == half and not self.small:
                report = skip_report(effects, loss.chance)
                limit = LIMITS.wasted * report.learnt if math.isfinite(report.learnt) else math.inf
                only = {layer for layer, change in enumerate(report.change) if change < 2 * limit}
                runs = candidates if any(change < limit for change in report.change) else []
                if not only:
                    break

            def track(steps: range, done: int = number * depth) -> Iterator[int]:
                for step in steps:
                    self.say("skipping layers", done + step, depth * len(portions))
                    if self.say.over():
                        raise OutOfTime
                    yield step

            try:
                effects.append(skip_layers(layout, portion, loss, runs=runs, only=only, track=track))
            except OutOfTime:
                self.say.left_out.append(f"skipping layers on {len(portions) - number} of {len(portions)} batches")
                break
        if len(effects) < min(2, len(portions)):
            return None
        return skip_report(effects, loss.chance, rows=rows, shared=shared)

    def _how(self, stream: StreamStatistics) -> HowMeasured:
        return HowMeasured(
            parameters=count_parameters(self.model),
            dtype=self.stored,
            device=self.device,
            tokens=stream.tokens,
            batches=len(self.batches),
            window=stream.shape[1] if stream.shape else None,
            width=stream.width,
            seed=self.options.seed,
            torch=torch.__version__,
            python=platform.python_version(),
            threads=torch.get_num_threads(),
            seconds=self.say.seconds(),
            stages=self.say.stages(),
        )


def _loss(options: DiagnoseOptions, model: nn.Module, batch: Any) -> Loss | None:
    ids, special = options.mask_id, options.special_ids
    return pick(options.loss, model, batch, mask_id=ids, special_ids=special, seed=options.seed)
