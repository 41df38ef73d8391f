"""Statistics that are reduced while they stream: a few numbers per layer stay, activations do not."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from normlab.probes.measure import metrics
from normlab.probes.measure.metrics.activations import ABSOLUTE, RELATIVE
from normlab.probes.trace.hooks import Record


class Mean:
    """Running mean of numbers."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else math.nan


class StreamStatistics:
    """Norms, contributions, cosines, turning, token similarity and large coordinates, per layer.

    Call it with each record. `rows()` gives one dict per layer, `embedding` the stream before the first layer.
    `rank_tokens` tokens of the first sequence of a batch enter the effective rank; 0 leaves it out.
    """

    def __init__(self, *, rank_tokens: int = 256) -> None:
        self.rank_tokens = rank_tokens
        self.sums: dict[int, dict[str, Mean]] = defaultdict(lambda: defaultdict(Mean))
        self.top: dict[int, tuple[float, int, int]] = {}
        self.kinds: dict[int, list[str]] = {}
        self.last: dict[int, Tensor] = {}  # last token of each sequence, for the angular distances: no length in it
        self.angles: dict[tuple[int, int], Mean] = defaultdict(Mean)
        self.tokens = self.width = 0
        self.shape: tuple[int, ...] = ()  # [batch, tokens, d] of the last batch
        self._known: tuple[Tensor, Tensor] | None = None  # (stream, its norms) of the layer before
        self._product: Tensor | None = None  # of the mixings of all layers so far, n x n per token

    def __call__(self, record: Record) -> None:
        index = record.index
        with torch.no_grad():
            if index == 0:
                self.tokens += record.before.shape[0] * record.before.shape[1]
                self.width, self.shape = record.before.shape[-1], tuple(record.before.shape)
                self._known = self._product = None
                self.last.clear()
                self._stream(-1, record.before, self._norms(record.before))
            before, after = self._norms(record.before), metrics.token_norms(record.after)
            sums = self.sums[index]
            lengths = {id(record.before): before, id(record.after): after}
            for part in record.parts:
                self._branch(sums, part, lengths)
            self.kinds[index] = [part.kind for part in record.parts]
            sums["block_influence"].add(1 - _cosine(record.before, record.after, before, after))
            self._stream(index, record.after, after)
            if record.streams is not None:
                sums["homogenisation"].add(float(metrics.homogenisation(record.streams)))
            self._mix(sums, record.mixings)
            self._known = (record.after, after)

    def _mix(self, sums: dict[str, Mean], mixings: list[Tensor]) -> None:
        if not mixings:
            return
        here = mixings[0].double()
        for mixing in mixings[1:]:
            here = mixing.double() @ here
        self._product = here if self._product is None else here @ self._product
        sums["mixing_gain"].add(float(metrics.mixing_gain(here)))
        sums["composite_gain"].add(float(metrics.mixing_gain(self._product)))

    def _norms(self, x: Tensor) -> Tensor:
        if self._known is not None and self._known[0] is x:
            return self._known[1]
        return metrics.token_norms(x)

    def _branch(self, sums: dict[str, Mean], part: Any, lengths: dict[int, Tensor]) -> None:
        base = lengths.get(id(part.before))
        if base is None:
            base = lengths[id(part.before)] = metrics.token_norms(part.before)
        added = metrics.token_norms(part.added)
        sums[f"{part.kind}_norm"].add(float(added.mean()))
        sums[f"{part.kind}_ratio"].add(float((added / base.clamp_min(1e-30)).mean()))
        sums[f"{part.kind}_cosine"].add(_cosine(part.added, part.before, added, base))

    def _stream(self, index: int, x: Tensor, norms: Tensor) -> None:
        sums = self.sums[index]
        sums["norm"].add(float(norms.mean()))
        sums["norm_median"].add(float(norms.median()))
        sums["nonfinite"].add(float((~torch.isfinite(norms)).sum()))
        n = x.shape[1]
        direction = torch.bmm((1 / norms.clamp_min(1e-30)).unsqueeze(1), x.float()).squeeze(1) / n
        length = direction.square().sum(-1)
        sums["token_cosine"].add(float(((length * n - 1) / max(n - 1, 1)).mean()))
        sums["token_variance"].add(float((1 - length).mean()))
        peak = metrics.top_magnitude(x)
        size = peak[0]
        middle = metrics.median_magnitude(x)
        sums["median_magnitude"].add(middle)
        if size > ABSOLUTE and size > RELATIVE * middle:
            sums["massive"].add(float((x.abs() > max(ABSOLUTE, RELATIVE * middle)).sum()))
        else:
            sums["massive"].add(0.0)
        if size > self.top.get(index, (-1.0, 0, 0))[0]:
            self.top[index] = peak
        if self.rank_tokens and n > 1 and bool(torch.isfinite(norms).all()):
            some = x[0, :: max(1, n // self.rank_tokens)][: self.rank_tokens]
            sums["effective_rank"].add(float(metrics.effective_rank(some)))
            sums["token_cosine_robust"].add(float(metrics.token_cosine(_without_largest(x)).mean()))
        self._turn(index, x[:, -1].float())

    def _turn(self, index: int, last: Tensor) -> None:
        if self.last:
            distances = metrics.angular_distance(torch.stack(list(self.last.values())), last).mean(-1).tolist()
            for earlier, distance in zip(self.last, distances, strict=True):
                self.angles[earlier, index].add(distance)
        self.last[index] = last

    def rows(self) -> list[dict[str, Any]]:
        return [self._row(index) for index in sorted(self.sums) if index >= 0]

    @property
    def embedding(self) -> dict[str, Any]:
        return self._row(-1)

    def _row(self, index: int) -> dict[str, Any]:
        sums = self.sums[index]
        row: dict[str, Any] = {"layer": index} if index >= 0 else {}
        row.update({name: mean.value for name, mean in sums.items()})
        row["rms"] = row["norm"] / math.sqrt(max(self.width, 1))
        row["max_magnitude"], row["max_position"], row["max_coordinate"] = self.top.get(index, (math.nan, -1, -1))
        if index >= 0:
            row["angular_distance"] = self.angles[index - 1, index].value
        return row

    def angular_matrix(self) -> list[list[float | None]]:
        """[start][n - 1]: distance between the stream before layer `start` and n layers later, at the last token."""
        depth = max(self.sums, default=-1) + 1
        return [[self.angles[s - 1, s - 1 + n].value for n in range(1, depth - s + 1)] for s in range(depth)]


class AttentionStatistics:
    """Entropy, largest weight, sink mass and the size of what attention returns, per layer."""

    def __init__(self) -> None:
        self.sums: dict[int, dict[str, Mean]] = defaultdict(lambda: defaultdict(Mean))
        self.positions: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.heads: dict[int, Tensor] = {}

    def __call__(self, record: Record) -> None:
        sums = self.sums[record.index]
        with torch.no_grad():
            if record.attended is not None:
                late = record.attended[:, record.attended.shape[1] // 2 :].float()
                sums["attention_output_rms"].add(float(late.square().mean().sqrt()))
            weights = record.weights
            if weights is None or weights.shape[-1] < 2:
                return
            entropy = metrics.normalised_entropy(weights)
            mass, position = metrics.sink(weights)
            sums["entropy"].add(float(entropy.mean()))
            sums["max_weight"].add(float(metrics.max_weight(weights).mean()))
            sums["sink_mass"].add(float(mass.mean()))
            for place in position.flatten().tolist():
                self.positions[record.index][int(place)] += 1
            self.heads[record.index] = mass.mean(0)

    def rows(self) -> list[dict[str, Any]]:
        result = []
        for index in sorted(self.sums):
            row = {name: mean.value for name, mean in self.sums[index].items()}
            if index in self.heads:
                places = self.positions[index]
                row["sink_position"] = max(places, key=lambda place: places[place])
                row["sink_heads"] = float((self.heads[index] > 0.5).float().mean())
            result.append({"layer": index, **row})
        return result


def _without_largest(x: Tensor, *, count: int = 3) -> Tensor:
    """x without the coordinates of the largest mean magnitude: a few rogue ones make all tokens look alike."""
    count = min(count, x.shape[-1] - 1)
    largest = x.abs().mean((0, 1)).topk(count).indices
    kept = torch.ones(x.shape[-1], dtype=torch.bool, device=x.device).index_fill_(0, largest, False)
    return x[..., kept]


def _cosine(a: Tensor, b: Tensor, length_a: Tensor, length_b: Tensor) -> float:
    dots = torch.linalg.vecdot(a.float(), b.float())
    return float((dots / (length_a * length_b).clamp_min(1e-30)).mean())
