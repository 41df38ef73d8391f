"""Run everything on one model: identity check, streaming statistics, attention, gradients, causal skips, verdicts."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import InputError, UnsupportedError
from normlab.probes.clock import Clock, OutOfTime, Progress
from normlab.probes.diagnosis import Diagnosis, HowMeasured, Mixing
from normlab.probes.inputs import batches as parts
from normlab.probes.inputs.hub import eager_attention
from normlab.probes.inputs.losses import Loss, LossReading, call, logits_of, padding, pick, token_ids, with_ids
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.inputs.sources import Material, Prepared, open_source, prepare
from normlab.probes.judge.rules import judge
from normlab.probes.judge.verdicts import LIMITS, SEVERITIES, ModelEvidence, listed
from normlab.probes.measure import bounds, gradients, metrics
from normlab.probes.measure.bounds import Theory
from normlab.probes.measure.derivatives import read_derivatives
from normlab.probes.measure.gradients import Gradients, suspects
from normlab.probes.measure.heads import AttentionStatistics
from normlab.probes.measure.outputs import OutputStatistics, listening, read_outputs
from normlab.probes.measure.readings import Readings
from normlab.probes.measure.skips import SkipEffects, SkipReport, skip_layers, skip_report
from normlab.probes.measure.stream import StreamStatistics
from normlab.probes.measure.summary import LengthRow, largest, mean, summarise
from normlab.probes.measure.table import AttentionRow, HeadRow, LayerRow, MaskRow, Rows, column, joined
from normlab.probes.measure.trials.repair import RepairReading, read_repair
from normlab.probes.measure.trials.run import TrialRow, run_trials
from normlab.probes.measure.twin.compare import read_twin
from normlab.probes.measure.twin.rows import read_rows_apart
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
from normlab.probes.precision import in_float32, widened, widens
from normlab.probes.trace.hooks import Layout, Record, slow_path
from normlab.probes.trace.identity import verify
from normlab.probes.trace.locate import locate_all
from normlab.probes.trace.roles import LayerRoles
from normlab.probes.trace.structure.settings import read_settings
from normlab.probes.trace.verbs import SchemeLayout
from normlab.probes.trace.wrappers import is_compiled, unwrapped


def diagnose(
    model: nn.Module | str | Path,
    batches: Any = None,
    *,
    name: str | None = None,
    roles: LayerRoles | None = None,
    options: DiagnoseOptions | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> Diagnosis:
    """Diagnose a live model on batches: token ids [batch, tokens], dicts of keyword arguments, or tuples.

    >>> nl.diagnose(model, [tokens]).to_html("report.html")
    >>> nl.diagnose("my-checkpoint")  # a folder, an id, a .gguf file, package:NAME; on its own text (a run) or ours

    `changes` are fields of `DiagnoseOptions` (loss=, lengths=, skips=False, ...), `roles` describes a layer that the
    table does not know, `progress(stage, done, total)` is told how far it is. The model is put in eval mode for the
    time of the call; its weights, gradients and mode are left as they were.
    """
    chosen = replace(options or DiagnoseOptions(), **changes)
    if isinstance(model, (str, Path)):
        if batches is None:
            prepared = prepare(str(model), Material(), chosen)
            return diagnose_prepared(prepared, name=name, roles=roles, progress=progress)
        loaded = open_source(str(model), Material())
        model, name = loaded.model, name or loaded.name
    if not isinstance(model, nn.Module):
        raise InputError(f"a model or the name of one was expected, and {type(model).__name__} was given")
    if batches is None:
        raise InputError("a live model needs batches: nl.diagnose(model, [token_ids]); only a name needs none")
    model = unwrapped(model)
    with in_eval_mode(model):
        clock = Clock(progress, budget=chosen.max_seconds)
        examination = _Examination(model, parts.as_batches(batches, model), chosen, clock)
        return examination.run_as_stored(name or type(model).__name__, roles)


def diagnose_prepared(
    prepared: Prepared, *, name: str | None = None, roles: LayerRoles | None = None, progress: Progress | None = None
) -> Diagnosis:
    """The same for what `inputs.sources.prepare` made of a name."""
    found = diagnose(
        prepared.model, prepared.batches, name=name or prepared.name, roles=roles, options=prepared.options,
        progress=progress,
    )  # fmt: skip
    how = replace(found.how, text=prepared.text, images=prepared.images)
    return replace(found, notes=(*found.notes, *prepared.notes), how=how)


SMALL = 20_000_000  # parameters up to which a pass costs next to nothing
TWIN_TOKENS = 256  # of two rows: pages and positions that go wrong late are seen too
SKIP_TOKENS, SKIP_TOKENS_LARGE = 512, 384
SLOPE_TOKENS, SLOPE_TOKENS_LARGE = 128, 64  # seventeen passes over these
GLANCE = 32  # tokens of a large model on which most trials are given up
TRIED = 16  # pieces on which a promising trial is measured


class _Examination:
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
        verdicts = [
            replace(verdict, title=f"in the {half.stack}, {verdict.title}")
            for half in (*more, last)
            for verdict in half.verdicts
        ]
        verdicts.sort(key=lambda verdict: SEVERITIES.index(verdict.severity))
        return replace(last, verdicts=tuple(verdicts), more=tuple(more))

    def _stack(self, name: str, layout: Layout, small: Any) -> Diagnosis:
        model, batches, options, say = self.model, self.batches, self.options, self.say
        say("checking the residual identity")
        identity = verify(layout, lambda: call(model, small))
        say("streaming statistics")
        loss = _loss(options, model, batches[0])
        heard = listening(loss)
        stream = _stream(layout, batches, heard)
        rows, mixing = _mixing(layout, small, stream.rows())
        broken = nonfinite_weights(model)
        healthy = not broken and not any(row.nonfinite for row in rows)
        lengths: tuple[LengthRow, ...] = ()
        readings = self._weights(layout) if healthy else Readings()
        readings = replace(readings, breaches=identity.breaches, uncalled=identity.uncalled)
        if options.attention and healthy and say.allows("attention and experts"):
            say("attention")
            rows, lengths, heads, masks = _attention(layout, batches, rows, options, say)
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
            theory=_theory(layout, stream, rows),
            mixing=mixing,
            how=self._how(stream),
            notes=(*_notes(layout, loss, healthy, causal), *_unmeasured(rows), *say.note()),
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
            rows_apart=None if twin is not None else read_rows_apart(self.model, self.batches[0]),
        )

    def _trials(self, layout: Layout, loss: Loss, readings: Readings) -> tuple[TrialRow, ...]:
        if isinstance(layout, SchemeLayout) or readings.output is None:
            return ()
        self.say("undoing accidents on trial")
        portions = self._portions(loss)
        if self.small:
            pieces = self._pieces(loss, TRIED)[:TRIED]
            every = range(len(layout.layers))
            return run_trials(layout, portions[0], pieces, loss, suspects=every, pulls=readings.pulls)
        # Each pass costs: single layers are tried where gradients point at them, if they do at all.
        alike = readings.noise is not None and readings.noise.high < LIMITS.suspicious
        layers = suspects(readings.pulls, len(layout.layers)) if alike else ()
        few = parts.shortened(portions[0], GLANCE)
        # Of a few tokens too few are hidden to say anything.
        glance = None if loss.name == "masked" or few is portions[0] else few
        return run_trials(layout, portions[0], portions, loss, suspects=layers, pulls=readings.pulls, glance=glance)

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
            parameters=sum(p.numel() for p in self.model.parameters()),
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


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode and no key-value cache, for the time of the block."""
    modes = {module: module.training for module in model.modules()}
    compiled = is_compiled(model)
    if compiled:
        torch.compiler.set_stance("force_eager")  # compiled code does not see hooks that come later
    config = getattr(model, "config", None)
    cached = getattr(config, "use_cache", None)
    model.eval()
    if cached:
        config.use_cache = False  # type: ignore[union-attr]
    try:
        yield
    finally:
        if compiled:
            torch.compiler.set_stance("default")
        for module, mode in modes.items():
            module.training = mode
        if cached:
            config.use_cache = cached  # type: ignore[union-attr]


def _stream(layout: Layout, batches: list[Any], heard: OutputStatistics | None) -> StreamStatistics:
    """Every batch once; what the model says is heard in the same pass."""
    statistics = StreamStatistics()
    with layout.tracer(statistics), torch.no_grad(), slow_path():
        for batch in batches:
            statistics.text = _text(layout, batch)
            output = call(layout.model, batch)
            if heard is not None and heard.loss.targets is not None and not heard.enough:
                heard.add(logits_of(output), *heard.loss.targets(batch)[1:])
    return statistics


def _text(layout: Layout, batch: Any) -> Tensor | None:
    """Where the sequence that this stack reads holds text, if some of it is padding."""
    if layout.stack == "decoder" and isinstance(batch, Mapping):
        return padding({"attention_mask": batch.get("decoder_attention_mask")})
    return padding(batch)


def _attention(
    layout: Layout, batches: list[Any], rows: list[LayerRow], options: DiagnoseOptions, say: Clock
) -> tuple[list[LayerRow], tuple[LengthRow, ...], tuple[HeadRow, ...], tuple[MaskRow, ...]]:
    """Weights at the batch's own length into the rows; then the means over layers against length."""
    with eager_attention(layout.model):
        first = parts.first_rows(batches[0], tokens=1 << 30)
        statistics = _watched(layout, first)
        found = statistics.rows()
        if not any(row.entropy is not None for row in found):
            return joined(rows, found), (), (), ()
        # The length of what a decoder reads beside an encoder does not follow from the encoder's text.
        texts = [] if layout.stack == "decoder" else parts.texts(layout.model, batches, options)
        lengths = []
        for number, text in enumerate(texts):
            say("attention", number, len(texts))
            if say.allows(f"attention at {text.shape[1]} tokens"):
                known = found if _is_start(text, first) else _watched(layout, with_ids(batches[0], text)).rows()
                lengths.append(_at_length(text.shape[1], known))
        modules = [layer for _, layer in layout.layers]
        masks = statistics.mask_rows(modules, getattr(layout.model, "config", None))
        return joined(rows, found), tuple(lengths), statistics.head_rows(), masks


def _is_start(text: Tensor, first: Any) -> bool:
    """Is it the text whose attention is known already?"""
    ids = token_ids(first)
    return ids is not None and padding(first) is None and ids.shape == text.shape and bool((ids == text).all())


class _BehindTheLayers(Exception):
    """Ends a pass behind the last layer: what the head makes of it is not asked."""


def _watched(layout: Layout, batch: Any) -> AttentionStatistics:
    statistics = AttentionStatistics(_text(layout, batch))

    def watch(record: Record) -> None:
        statistics(record)
        if layout.stops_at == record.index:
            raise _BehindTheLayers

    with layout.tracer(watch, weights=True), torch.no_grad(), slow_path(), suppress(_BehindTheLayers):
        call(layout.model, batch)
    return statistics


def _at_length(length: int, rows: Sequence[AttentionRow]) -> LengthRow:
    def average(value: Callable[[AttentionRow], float | None]) -> float:
        return mean(column(rows, value))

    return LengthRow(
        length=length,
        entropy=average(lambda row: row.entropy),
        max_weight=average(lambda row: row.max_weight),
        sink_mass=average(lambda row: row.sink_mass),
        attention_output_rms=average(lambda row: row.attention_output_rms),
        layers=tuple(rows),
    )


def _mixing(layout: Layout, batch: Any, rows: list[LayerRow]) -> tuple[list[LayerRow], Mixing | None]:
    """The depth-mixing matrix of a model that defines one (`model.depth_mixing_parts(tokens)`), mean over tokens."""
    find, ids, groups = getattr(layout.model, "depth_mixing_parts", None), token_ids(batch), layout.groups
    if find is None or ids is None or groups is None or any(row.nonfinite for row in rows):
        return rows, None
    try:
        found = find(ids)
    except UnsupportedError as error:
        return rows, Mixing(absent=str(error))
    matrix = found.matrix.detach()
    used = metrics.effective_sources(matrix).mean((0, 1)).tolist()
    rows = [
        replace(row, effective_sources=sum(used[site] for site in group) / len(group))
        for row, group in zip(rows, groups, strict=True)
    ]
    shown = tuple(tuple(line) for line in matrix.mean((0, 1)).tolist())
    return rows, Mixing(matrix=shown, tokens=ids.numel(), reads=tuple(group[0] for group in groups), error=found.error)


def _theory(layout: Layout, stream: StreamStatistics, rows: Rows) -> Theory:
    start, law, placement = stream.embedding, layout.growth_law, layout.placement
    sizes = [[branch.norm for branch in row.branches] for row in rows]
    plain = "scaled" not in placement  # the laws are of sums without weights
    pre = plain and placement.startswith(("pre_norm", "peri_norm", "res_norm"))
    tokens = max(2, stream.shape[1] if stream.shape else 2)
    return Theory(
        growth_exponent=bounds.law_exponent(law) if law else bounds.growth_exponent(placement),
        xiong=bounds.xiong_bounds(len(rows), stream.width) if plain and placement.startswith("pre_norm") else None,
        orthogonal=bounds.orthogonal_sum(start.norm or 0.0, sizes) if pre else None,
        sphere_cosine=bounds.sphere_cosine(placement, start.token_cosine or 0.0, len(rows), tokens=tokens),
    )


def _unmeasured(rows: Rows) -> list[str]:
    """Of which layers there are no attention weights, and why."""
    reasons = dict.fromkeys(row.unmeasured for row in rows if row.unmeasured)
    found = []
    for reason in reasons:
        where = [row.layer for row in rows if row.unmeasured == reason]
        found.append(f"attention was not measured in {listed(where)}: {reason}")
    return found


def _notes(layout: Layout, loss: Loss | None, healthy: bool, causal: SkipReport | None) -> list[str]:
    notes = list(layout.notes)
    if causal and causal.better_without > len(causal.change) / 4:
        notes.append(
            f"without {causal.better_without} of {len(causal.change)} layers the loss falls: the model is sure of "
            "wrong answers on this text, so skips were not used to judge its layers"
        )
    if not healthy:
        notes.append("attention, gradients and skips were left out: NaN or infinities are present")
    elif loss is None:
        notes.append("no loss fits this model and input, so gradients and skips were not measured; pass loss=")
    notes += _rounding(layout.model)
    if layout.mutated:
        names = ", ".join(sorted(name or "the stream" for name in layout.mutated))
        notes.append(f"changed in place by the model, so copied first: {names}")
    return notes


def _rounding(model: nn.Module) -> list[str]:
    """Half precision is measured as it runs: its overflows are real, and its last digits are not."""
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if torch.finfo(kind).bits >= 32:
        return []
    name, step = str(kind).removeprefix("torch."), 100 * torch.finfo(kind).eps
    return [
        f"measured in {name}, which rounds to {step:.2g} %: a verdict whose number is that near to its limit, and skips that "
        "hardly change the loss, may be judged otherwise in a float32 copy (model.float())"
    ]
