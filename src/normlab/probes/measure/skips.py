"""Skip a layer, measure the loss: the only test that shows whether a layer matters.

Skipping means that the stream passes by. Layers before the skipped one are not computed again: the stream in front
of it is kept (one tensor, not one per layer) and put back in. That shortcut is tried on the whole model first, and
given up if it does not reproduce the loss.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.table import LayerRow, Real, Rows, column
from normlab.probes.trace.hooks import Layout, slow_path
from normlab.probes.trace.tensors import first_tensor
from normlab.probes.trace.verbs import SchemeLayout, SchemeSkipper
from normlab.stats import spearman, standard_error, t_reach


class _Stop(Exception):
    """Ends a forward pass that has told what it should."""


@dataclass
class SkipEffects:
    """What happens without layers: `loss[s]` without layer s, `runs` as (first layer, how many, loss), and
    `later[s][l]`, the relative change of layer l's update at the last token. NaN: that layer was not asked for."""

    baseline: float
    loss: list[float]
    runs: list[tuple[int, int, float]] = field(default_factory=list)
    later: list[list[float | None]] = field(default_factory=list)
    shortcut: bool = True


class Skipper:
    """Replaces the forward of the layers for the time of one pass; layers are counted by calls."""

    def __init__(self, layout: Layout, batch: Any, loss: Loss) -> None:
        self.layout, self.batch, self.loss = layout, batch, loss
        self.template: Any = None  # what the first layer returned: the rest of a tuple is handed on with it
        self.depth = self.passes = 0
        self.updates: dict[tuple[int, int], Tensor] = {}

    @torch.no_grad()
    def run(self, behave: Callable[[int, Any, Tensor], Any]) -> float | None:
        """One pass; `behave(index, compute, x)` returns a layer's output. None if it was stopped."""
        with self.patched(behave), slow_path():
            try:
                return float(self.loss(self.layout.model, self.batch))
            except _Stop:
                return None

    @contextmanager
    def patched(self, behave: Callable[[int, Any, Tensor], Any]) -> Iterator[None]:
        self.passes, count = -1, 0

        def begin(*_: object) -> None:  # a loss may run the model more than once
            nonlocal count
            self.passes, count = self.passes + 1, 0

        def replaced(original: Any) -> Any:
            def forward(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1

                def compute(x: Tensor) -> Any:
                    positional, named = _swap((args, kwargs), x)
                    return original(*positional, **named)

                return behave(count - 1, compute, first_tensor((args, kwargs)))

            return forward

        handle = self.layout.model.register_forward_pre_hook(begin)
        modules = {id(layer): layer for _, layer in self.layout.layers}.values()
        for layer in modules:
            layer.forward = replaced(layer.forward)
        try:
            yield
        finally:
            handle.remove()
            for layer in modules:
                del layer.forward

    def baseline(self) -> float:
        self.updates.clear()

        def plain(index: int, compute: Any, x: Tensor) -> Any:
            output = compute(x)
            if index == 0:
                self.template = output
            self.depth = max(self.depth, index + 1)
            self.updates[self.passes, index] = _last(first_tensor(output)) - _last(x)
            return output

        value = self.run(plain)
        assert value is not None
        return value

    def passed(self, x: Tensor) -> Any:
        return _swap(self.template, x)

    def without(self, skipped: range, stream: Tensor | None) -> tuple[float, list[float | None]]:
        """Loss without some layers, and how much the last token's update changes in each later layer."""
        later: list[float | None] = [None] * self.depth

        def behave(index: int, compute: Any, x: Tensor) -> Any:
            if index < skipped.start and stream is not None:
                return self.passed(x)
            if index in skipped:
                return self.passed(stream if stream is not None and index == skipped.start else x)
            output = compute(x)
            if index >= skipped.stop:
                known = self.updates[self.passes, index]
                change = _last(first_tensor(output)) - _last(x) - known
                later[index] = float(change.norm() / known.norm().clamp_min(1e-30))
            return output

        value = self.run(behave)
        assert value is not None
        return value, later

    def advance(self, layer: int, stream: Tensor | None) -> Tensor:
        """The stream behind `layer`, given the one in front of it (None: from the embedding)."""
        kept: list[Tensor] = []

        def behave(index: int, compute: Any, x: Tensor) -> Any:
            if index < layer:
                return self.passed(x)
            kept.append(first_tensor(compute(x if stream is None else stream)))
            raise _Stop

        self.run(behave)
        return kept[0]

    def resumes(self, layer: int, stream: Tensor, baseline: float) -> bool:
        """Does a pass that starts at `layer` with the kept stream give the loss of a whole pass?"""

        def behave(index: int, compute: Any, x: Tensor) -> Any:
            return self.passed(x) if index < layer else compute(stream if index == layer else x)

        value = self.run(behave)
        return value is not None and abs(value - baseline) <= 1e-4 * max(abs(baseline), 1e-3)


def skipper_of(layout: Layout, batch: Any, loss: Loss) -> Skipper | SchemeSkipper:
    if isinstance(layout, SchemeLayout):
        return SchemeSkipper(layout, batch, loss)
    return Skipper(layout, batch, loss)


def skip_layers(
    layout: Layout,
    batch: Any,
    loss: Loss,
    *,
    runs: Iterable[tuple[int, int]] = (),
    only: Collection[int] | None = None,
    track: Callable[[range], Iterable[int]] | None = None,
) -> SkipEffects:
    """Skip each layer alone (or `only` these), then each (start, length) of `runs`. `track` wraps the loop."""
    skipper = skipper_of(layout, batch, loss)
    baseline = skipper.baseline()
    # The contrastive loss runs the model twice a batch, and a scheme's stream may be more than a tensor.
    effects = SkipEffects(baseline, [], shortcut=loss.name != "contrastive" and isinstance(skipper, Skipper))
    wanted = {start: [n for s, n in runs if s == start] for start, _ in runs}
    stream: Tensor | None = None
    steps = range(skipper.depth)
    for layer in track(steps) if track else steps:
        if effects.shortcut and layer > 0 and isinstance(skipper, Skipper):
            stream = skipper.advance(layer - 1, stream)
            if layer == 1:
                effects.shortcut = skipper.resumes(1, stream, baseline)
        usable = stream if effects.shortcut else None
        left_out = only is not None and layer not in only
        value, later = (math.nan, []) if left_out else skipper.without(range(layer, layer + 1), usable)
        effects.loss.append(value)
        effects.later.append(later)
        for length in wanted.get(layer, []):
            value, _ = skipper.without(range(layer, layer + length), usable)
            effects.runs.append((layer, length, value))
    return effects


def _last(x: Tensor) -> Tensor:
    return x[:, -1].detach().clone()


def _swap(value: Any, replacement: Tensor) -> Any:
    """The same structure with its first floating tensor replaced."""
    done = False

    def walk(item: Any) -> Any:
        nonlocal done
        if done:
            return item
        if isinstance(item, Tensor):
            if item.is_floating_point():
                done = True
                return replacement
            return item
        if isinstance(item, (tuple, list)):
            return type(item)(walk(part) for part in item)
        return {key: walk(part) for key, part in item.items()} if isinstance(item, dict) else item

    return walk(value)


# What could stand in for a skip: each is correlated with the measured effect.
CHEAP: dict[str, Callable[[LayerRow], float | None]] = {
    "block_influence": lambda row: row.block_influence,
    "angular_distance": lambda row: row.angular_distance,
    "attention_ratio": lambda row: row.attention_ratio,
    "ffn_ratio": lambda row: row.ffn_ratio,
    "norm": lambda row: row.norm,
    "token_cosine": lambda row: row.token_cosine,
    "effective_rank": lambda row: row.effective_rank,
    "entropy": lambda row: row.entropy,
    "sink_mass": lambda row: row.sink_mass,
    "gradient_norm": lambda row: row.gradient_norm,
    "stream_gradient": lambda row: row.stream_gradient,
}


def reach(batches: int) -> float:
    """By how many standard errors a mean over so many batches is trusted; one batch has no error bar."""
    return t_reach(batches) if batches > 1 else 0.0


@dataclass(frozen=True)
class SkippedRun:
    """The cheapest run of so many neighbours, left out at once."""

    first: int
    length: int
    change: Real

    @property
    def last(self) -> int:
        return self.first + self.length - 1


@dataclass(frozen=True)
class SkipReport:
    """Means over batches, with the standard error of each layer's effect (nan with a single batch)."""

    loss: Real
    chance: float | None
    learnt: Real
    informative: bool
    better_without: int
    batches: int
    shared: bool  # one block is applied many times (ALBERT): leaving out any application gives the same model
    change: tuple[Real, ...]
    error: tuple[Real, ...]
    runs: tuple[SkippedRun, ...]
    later: tuple[tuple[float | None, ...], ...]
    correlation: dict[str, Real] = field(default_factory=dict)


def skip_report(
    effects: Sequence[SkipEffects], chance: float | None, *, rows: Rows = (), shared: bool = False
) -> SkipReport:
    """What the skips on several batches say together; `rows` are what cheap metrics measured of the same layers."""
    depth = len(effects[0].loss)
    changes = [
        [effect.loss[layer] - effect.baseline for effect in effects if effect.loss[layer] == effect.loss[layer]]
        for layer in range(depth)
    ]
    loss = statistics.fmean(effect.baseline for effect in effects)
    learnt = chance - loss if chance is not None else math.nan
    means = tuple(statistics.fmean(values) for values in changes)
    # An effect on fewer batches is less certain than its standard error says: intervals are drawn for all of them.
    wider = [reach(len(values)) / max(reach(len(effects)), 1e-9) if len(values) > 1 else 1.0 for values in changes]
    errors = tuple(standard_error(values) * times for values, times in zip(changes, wider, strict=True))
    better = sum(mean + reach(len(effects)) * error < 0 for mean, error in zip(means, errors, strict=True))
    return SkipReport(
        loss=loss,
        chance=chance,
        learnt=learnt,
        # A model that does not beat chance has nothing to lose, and one whose loss falls without its layers is sure of
        # wrong answers (a text that is not of its kind): skipping says nothing about what its layers are worth.
        informative=bool(chance and learnt > 0.05 * chance) and better <= depth / 4,
        better_without=better,
        batches=len(effects),
        shared=shared,
        change=means,
        error=errors,
        runs=_cheapest(effects),
        later=tuple(tuple(row) for row in effects[0].later),
        correlation=correlations(rows, means),
    )


def _cheapest(effects: Sequence[SkipEffects]) -> tuple[SkippedRun, ...]:
    """Of each length, the run whose mean effect is least."""
    values: dict[tuple[int, int], list[float]] = {}
    for effect in effects:
        for first, length, value in effect.runs:
            values.setdefault((first, length), []).append(value - effect.baseline)
    best: dict[int, SkippedRun] = {}
    for (first, length), found in values.items():
        run = SkippedRun(first, length, statistics.fmean(found))
        if length not in best or run.change < best[length].change:
            best[length] = run
    return tuple(best[length] for length in sorted(best))


def correlations(rows: Rows, change: Sequence[float]) -> dict[str, float]:
    """Spearman's rank correlation of each cheap metric with the measured effect of skipping."""
    measured = {name: value for name, value in CHEAP.items() if any(value(row) is not None for row in rows)}
    return {name: spearman(column(rows, value), change) for name, value in measured.items()}
