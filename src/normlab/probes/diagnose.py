"""Run everything on one model: identity check, streaming statistics, attention, gradients, causal skips, verdicts."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import InputError, UnsupportedError
from normlab.probes.diagnosis import Diagnosis
from normlab.probes.inputs import batches as parts
from normlab.probes.inputs.hub import eager_attention
from normlab.probes.inputs.losses import Loss, call, pick, token_ids, with_ids
from normlab.probes.judge.rules import judge
from normlab.probes.judge.verdicts import Findings
from normlab.probes.measure import bounds, gradients, metrics
from normlab.probes.measure.skips import causal_report, correlations, skip_layers
from normlab.probes.measure.stream import AttentionStatistics, StreamStatistics
from normlab.probes.measure.summary import column, finite, summarise
from normlab.probes.measure.weights import duplicates, nonfinite_weights
from normlab.probes.trace.hooks import Layout, slow_path, tracer, verify
from normlab.probes.trace.locate import locate
from normlab.probes.trace.roles import Row


@dataclass(frozen=True)
class Plan:
    """How much to measure. The defaults take about a minute for 125M parameters on a CPU."""

    loss: Any = "auto"  # "causal", "masked", "contrastive", "none", or a function of (model, batch)
    mask_id: int | None = None
    special_ids: tuple[int, ...] = ()  # [CLS], [SEP], ...: the masked loss leaves them alone
    attention: bool = True
    lengths: tuple[int, ...] | None = None  # None: 64, 128, ... up to the limit of the model and of the text
    longest: int = 1024
    gradient_tokens: int = 1024
    skips: bool = True
    skip_tokens: int = 512
    seed: int = 0


def diagnose(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    name: str | None = None,
    row: Row | None = None,
    plan: Plan | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> Diagnosis:
    """Diagnose a live model on batches: token ids [batch, tokens], dicts of keyword arguments, or tuples.

    >>> nl.diagnose(model, [tokens]).to_html("report.html")

    `options` are fields of `Plan` (loss=, lengths=, skips=False, ...), `row` describes a layer that the table does not
    know, `progress(stage, done, total)` is told how far it is. The model is put in eval mode for the time of
    the call; its weights, gradients and mode are left as they were.
    """
    plan = plan or Plan(**options)
    batches = list(batches)
    if not batches:
        raise InputError("no batches were given: pass a list with at least one batch, for example [token_ids]")
    say = _Clock(progress)
    with _prepared(model):
        small = parts.first_rows(batches[0])
        layout = locate(model, lambda: call(model, small), row=row)
        say("checking the residual identity", 0, 0)
        errors = verify(layout, lambda: call(model, small))
        say("streaming statistics", 0, 0)
        stream = _stream(layout, batches)
        rows = stream.rows()
        mixing = _mixing(layout, small, rows)
        broken = nonfinite_weights(model)
        healthy = not broken and not any(r["nonfinite"] for r in rows)
        lengths: list[dict[str, Any]] = []
        if plan.attention and healthy:
            say("attention", 0, 0)
            lengths = _attention(layout, batches, rows, plan)
        loss = _loss(plan, model, batches[0]) if healthy else None
        value = math.nan
        if loss is not None:
            say("gradients", 0, 0)
            found, value = gradients.measure(layout, parts.some(batches, plan.gradient_tokens, loss), loss)
            _join(rows, found)
        causal = None
        if loss is not None and plan.skips:
            causal = _skips(layout, batches, loss, stream, plan, say)
            _join(rows, [{"layer": i, "skip_loss_change": value} for i, value in enumerate(causal["change"])])
            causal["correlation"] = correlations(rows, causal["change"])
    summary = summarise(rows, lengths)
    findings = Findings(rows, summary, layout.placement, broken, duplicates(layout), causal)
    return Diagnosis(
        name=name or type(model).__name__,
        architecture=layout.architecture,
        placement=layout.placement,
        inferred=layout.inferred,
        identity_error=max(finite([*errors, (mixing or {}).get("error", math.nan)]), default=math.nan),
        embedding=stream.embedding,
        layers=rows,
        summary=summary,
        verdicts=judge(findings),
        lengths=lengths,
        angular=stream.angular_matrix(),
        causal=causal,
        loss={"name": loss.name, "value": value, "chance": loss.chance} if loss else None,
        theory=_theory(layout, stream, rows),
        mixing=mixing,
        how={**_how(model, stream, batches, plan), **say.seconds()},
        notes=_notes(layout, loss, healthy, causal),
    )


class _Clock:
    """Tells the progress on, and keeps how long each stage took."""

    def __init__(self, progress: Callable[[str, int, int], None] | None) -> None:
        self.progress, self.start = progress, time.perf_counter()
        self.begins: list[tuple[str, float]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self.begins or self.begins[-1][0] != stage:
            self.begins.append((stage, time.perf_counter()))
        if self.progress is not None:
            self.progress(stage, done, total)

    def seconds(self) -> dict[str, Any]:
        ends = [*(begin for _, begin in self.begins[1:]), time.perf_counter()]
        stages = {name: round(end - begin, 1) for (name, begin), end in zip(self.begins, ends, strict=True)}
        return {"seconds": round(ends[-1] - self.start, 1), "stages": stages}


def _loss(plan: Plan, model: nn.Module, batch: Any) -> Loss | None:
    return pick(plan.loss, model, batch, mask_id=plan.mask_id, special_ids=plan.special_ids, seed=plan.seed)


@contextmanager
def _prepared(model: nn.Module) -> Iterator[None]:
    """Eval mode and no key-value cache, for the time of the block."""
    modes = {module: module.training for module in model.modules()}
    config = getattr(model, "config", None)
    cached = getattr(config, "use_cache", None)
    model.eval()
    if cached:
        config.use_cache = False  # type: ignore[union-attr]
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        if cached:
            config.use_cache = cached  # type: ignore[union-attr]


def _stream(layout: Layout, batches: list[Any]) -> StreamStatistics:
    statistics = StreamStatistics()
    with tracer(layout, statistics), torch.no_grad(), slow_path():
        for batch in batches:
            call(layout.model, batch)
    return statistics


def _attention(layout: Layout, batches: list[Any], rows: list[dict[str, Any]], plan: Plan) -> list[dict[str, Any]]:
    """Weights at the batch's own length into the rows; then the means over layers against length."""
    with eager_attention(layout.model):
        first = AttentionStatistics()
        with tracer(layout, first, weights=True), torch.no_grad(), slow_path():
            call(layout.model, parts.first_rows(batches[0], tokens=1 << 30))
        found = first.rows()
        if not any("entropy" in row for row in found):
            return []
        _join(rows, found)
        return [_at_length(layout, batches[0], text) for text in parts.texts(layout.model, batches, plan)]


def _at_length(layout: Layout, batch: Any, ids: Tensor) -> dict[str, Any]:
    statistics = AttentionStatistics()
    with tracer(layout, statistics, weights=True), torch.no_grad(), slow_path():
        call(layout.model, with_ids(batch, ids))
    rows = statistics.rows()
    names = ("entropy", "max_weight", "sink_mass", "attention_output_rms")
    means = {name: sum(column(rows, name)) / len(rows) for name in names}
    return {"length": ids.shape[1], **means, "layers": rows}


def _skips(
    layout: Layout,
    batches: list[Any],
    loss: Loss,
    stream: StreamStatistics,
    plan: Plan,
    say: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """Skip layers on several small batches, so that each effect has a standard error."""
    portions = parts.skip_batches(batches, loss, plan)
    runs = parts.candidate_runs(stream.angular_matrix())
    depth, effects = len(stream.rows()), []
    for number, part in enumerate(portions):

        def track(steps: range, done: int = number * depth) -> Iterator[int]:
            for step in steps:
                say("skipping layers", done + step, depth * len(portions))
                yield step

        effects.append(skip_layers(layout, part, loss, runs=runs, track=track))
    return causal_report(effects, loss.chance, shared=len(layout.layers) == 1 < depth)


def _mixing(layout: Layout, batch: Any, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The depth-mixing matrix of a model that defines one (`model.depth_mixing_parts(tokens)`), mean over tokens."""
    find, ids = getattr(layout.model, "depth_mixing_parts", None), token_ids(batch)
    groups = getattr(layout, "groups", None)
    if find is None or ids is None or groups is None or any(row["nonfinite"] for row in rows):
        return None
    try:
        parts = find(ids)
    except UnsupportedError as error:
        return {"absent": str(error)}
    matrix = parts.matrix.detach().mean((0, 1))
    used = metrics.effective_sources(parts.matrix.detach()).mean((0, 1)).tolist()
    for row, group in zip(rows, groups, strict=True):
        row["effective_sources"] = sum(used[site] for site in group) / len(group)
    reads = [group[0] for group in groups]
    return {"matrix": matrix.tolist(), "tokens": ids.numel(), "reads": reads, "error": parts.error}


def _join(rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    known = {row["layer"]: row for row in rows}
    for row in more:
        known[row["layer"]].update(row)


def _theory(layout: Layout, stream: StreamStatistics, rows: list[dict[str, Any]]) -> dict[str, Any]:
    start, law = stream.embedding, getattr(layout, "growth_law", [])
    low, high = bounds.xiong_bounds(len(rows), stream.width)
    sizes = [[row[key] for key in ("attention_norm", "ffn_norm") if key in row] for row in rows]
    pre = layout.placement.startswith(("pre_norm", "peri_norm", "res_norm"))
    tokens = max(2, stream.shape[1] if stream.shape else 2)
    return {
        "growth_exponent": bounds.law_exponent(law) if law else bounds.growth_exponent(layout.placement),
        "xiong": {"low": low, "high": high} if layout.placement.startswith("pre_norm") else None,
        "orthogonal": bounds.orthogonal_sum(start["norm"], sizes) if pre else None,
        "sphere_cosine": bounds.sphere_cosine(layout.placement, start["token_cosine"], len(rows), tokens=tokens),
    }


def _how(model: nn.Module, stream: StreamStatistics, batches: list[Any], plan: Plan) -> dict[str, Any]:
    parameter = next(model.parameters())
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "device": str(parameter.device),
        "tokens": stream.tokens,
        "batches": len(batches),
        "window": stream.shape[1] if stream.shape else None,
        "width": stream.width,
        "seed": plan.seed,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def _notes(layout: Layout, loss: Loss | None, healthy: bool, causal: dict[str, Any] | None) -> list[str]:
    notes = list(layout.notes)
    if causal and causal["better_without"] > len(causal["change"]) / 4:
        notes.append(
            f"without {causal['better_without']} of {len(causal['change'])} layers the loss falls: the model is sure of "
            "wrong answers on this text, so skips were not used to judge its layers"
        )
    if not healthy:
        notes.append("attention, gradients and skips were left out: NaN or infinities are present")
    elif loss is None:
        notes.append("no loss fits this model and input, so gradients and skips were not measured; pass loss=")
    if layout.mutated:
        names = ", ".join(sorted(name or "the stream" for name in layout.mutated))
        notes.append(f"changed in place by the model, so copied first: {names}")
    return notes
