"""Statistics that are reduced while they stream: a few numbers per layer stay, activations do not."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from normlab.probes.measure import metrics
from normlab.probes.measure.metrics.activations import ABSOLUTE, RELATIVE
from normlab.probes.measure.streams import stream_numbers
from normlab.probes.measure.table import BranchReading, LayerRow, StreamRow
from normlab.probes.trace.hooks import Part, Record


class Means:
    """Running means of named numbers."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def add(self, **values: float) -> None:
        for name, value in values.items():
            total = self._sums.setdefault(name, [0.0, 0])
            total[0] += value
            total[1] += 1

    def values(self) -> dict[str, Any]:
        return {name: total / count for name, (total, count) in self._sums.items()}


class StreamStatistics:
    """Norms, contributions, cosines, turning, token similarity and large coordinates, per layer.

    Call it with each record. `rows()` gives one row per layer, `embedding` the stream before the first layer.
    `rank_tokens` tokens of the first sequence of a batch enter the effective rank; 0 leaves it out.
    """

    def __init__(self, *, rank_tokens: int = 256) -> None:
        self.rank_tokens = rank_tokens
        self.sums: dict[int, Means] = defaultdict(Means)
        self.branches: dict[tuple[int, str], Means] = defaultdict(Means)
        self.top: dict[int, tuple[float, int, int]] = {}
        self.last: dict[int, Tensor] = {}  # last token of each sequence, for the angular distances: no length in it
        self.angles: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.tokens = self.width = 0
        self.shape: tuple[int, ...] = ()  # [batch, tokens, d] of the last batch
        self.mixers: dict[int, str] = {}
        self.text: Tensor | None = None  # [batch, tokens], where the batch is not padding
        self._known: tuple[Tensor, Tensor] | None = None  # (stream, its norms) of the layer before
        self._product: Tensor | None = None  # of the mixings of all layers so far, n x n per token

    def __call__(self, record: Record) -> None:
        index = record.index
        with torch.no_grad():
            if index == 0:
                self.tokens += (
                    int(self.text.sum()) if self.text is not None else record.before.shape[0] * record.before.shape[1]
                )
                self.width, self.shape = record.before.shape[-1], tuple(record.before.shape)
                self._known = self._product = None
                self.last.clear()
                self._stream(-1, record.before, self._norms(record.before))
            before, after = self._norms(record.before), metrics.token_norms(record.after)
            sums = self.sums[index]
            if record.mixer:
                self.mixers[index] = record.mixer
            lengths = {id(record.before): before, id(record.after): after}
            for part in record.parts:
                self._branch(index, part, lengths)
            sums.add(block_influence=1 - self._cosine(record.before, record.after, before, after))
            self._stream(index, record.after, after)
            sums.add(**{name: float(value) for name, value in stream_numbers(record).items()})
            self._mix(sums, record.mixings)
            self._known = (record.after, after)

    def _mix(self, sums: Means, mixings: list[Tensor]) -> None:
        if not mixings:
            return
        here = mixings[0].double()
        for mixing in mixings[1:]:
            here = mixing.double() @ here
        self._product = here if self._product is None else here @ self._product
        sums.add(mixing_gain=float(metrics.mixing_gain(here)))
        sums.add(composite_gain=float(metrics.mixing_gain(self._product)))

    def _norms(self, x: Tensor) -> Tensor:
        if self._known is not None and self._known[0] is x:
            return self._known[1]
        return metrics.token_norms(x)

    def _branch(self, index: int, part: Part, lengths: dict[int, Tensor]) -> None:
        base = lengths.get(id(part.before))
        if base is None:
            base = lengths[id(part.before)] = metrics.token_norms(part.before)
        added = metrics.token_norms(part.added)
        self.branches[index, part.kind].add(
            norm=float(self._kept(added).mean()),
            ratio=float(self._kept(added / base.clamp_min(1e-30)).mean()),
            typical=float(self._kept(added / base.clamp_min(1e-30)).median()),
            cosine=self._cosine(part.added, part.before, added, base),
        )

    def _kept(self, values: Tensor) -> Tensor:
        """The values [batch, tokens, ...] of text, without padding."""
        return values if self.text is None else values[self.text.to(values.device)]

    def _cosine(self, a: Tensor, b: Tensor, length_a: Tensor, length_b: Tensor) -> float:
        dots = torch.linalg.vecdot(a.float(), b.float())
        return float(self._kept(dots / (length_a * length_b).clamp_min(1e-30)).mean())

    def _stream(self, index: int, x: Tensor, norms: Tensor) -> None:
        sums, kept = self.sums[index], self._kept(norms)
        sums.add(norm=float(kept.mean()), norm_median=float(kept.median()))
        sums.add(nonfinite=float((~torch.isfinite(kept)).sum()))
        n, length = self._directions(x, norms)
        sums.add(token_cosine=float(((length * n - 1) / (n - 1).clamp_min(1)).mean()))
        sums.add(token_variance=float((1 - length).mean()))
        clean = x if self.text is None else x * self.text.to(x.device).unsqueeze(-1)
        peak, middle = metrics.top_magnitude(clean), metrics.median_magnitude(self._kept(x))
        size = peak[0]
        sums.add(median_magnitude=middle)
        if size > ABSOLUTE and size > RELATIVE * middle:
            sums.add(massive=float((clean.abs() > max(ABSOLUTE, RELATIVE * middle)).sum()))
        else:
            sums.add(massive=0.0)
        if size > self.top.get(index, (-1.0, 0, 0))[0]:
            self.top[index] = peak
        if self.rank_tokens and x.shape[1] > 1 and bool(torch.isfinite(kept).all()):
            first = x[0] if self.text is None else x[0][self.text[0].to(x.device)]
            some = first[:: max(1, len(first) // self.rank_tokens)][: self.rank_tokens]
            sums.add(effective_rank=float(metrics.effective_rank(some)))
            rest = _without_largest(clean)
            m, robust = self._directions(rest, metrics.token_norms(rest))
            sums.add(token_cosine_robust=float(((robust * m - 1) / (m - 1).clamp_min(1)).mean()))
        self._turn(index, self._last(x).float())

    def _directions(self, x: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, ||mean direction||^2) of each sequence."""
        weights = 1 / norms.clamp_min(1e-30)
        n = torch.full(norms.shape[:1], float(norms.shape[1]), device=norms.device, dtype=norms.dtype)
        if self.text is not None:
            weights, n = weights * self.text.to(norms.device), self.text.to(norms).sum(1)
        direction = torch.bmm(weights.unsqueeze(1), x.to(weights.dtype)).squeeze(1) / n.clamp_min(1).unsqueeze(1)
        return n, direction.square().sum(-1)

    def _last(self, x: Tensor) -> Tensor:
        """The last token of text of each sequence."""
        if self.text is None:
            return x[:, -1]
        places = torch.arange(x.shape[1], device=x.device) * self.text.to(x.device)
        return x[torch.arange(len(x), device=x.device), places.argmax(1)]

    def _turn(self, index: int, last: Tensor) -> None:
        if self.last:
            distances = metrics.angular_distance(torch.stack(list(self.last.values())), last).mean(-1).tolist()
            for earlier, distance in zip(self.last, distances, strict=True):
                self.angles[earlier, index].append(distance)
        self.last[index] = last

    def rows(self) -> list[LayerRow]:
        return [self._row(index) for index in sorted(self.sums) if index >= 0]

    @property
    def embedding(self) -> StreamRow:
        return StreamRow(**self._place(-1))

    def _row(self, index: int) -> LayerRow:
        attention, ffn = (self.branches[index, kind].values() for kind in ("attention", "ffn"))
        return LayerRow(
            layer=index,
            attention_norm=attention.get("norm"),
            attention_ratio=attention.get("ratio"),
            attention_cosine=attention.get("cosine"),
            ffn_norm=ffn.get("norm"),
            ffn_ratio=ffn.get("ratio"),
            ffn_cosine=ffn.get("cosine"),
            attention_typical=attention.get("typical"),
            ffn_typical=ffn.get("typical"),
            angular_distance=self._angle(index - 1, index),
            others=self._others(index) or None,
            mixer=self.mixers.get(index),
            **self._place(index),
        )

    def _others(self, index: int) -> tuple[BranchReading, ...]:
        """Branches besides attention and FFN, each by itself: a dead one does not hide in an average."""
        found = ((kind, means.values()) for (layer, kind), means in self.branches.items() if layer == index)
        return tuple(
            BranchReading(kind, index, **each) for kind, each in found if kind not in ("attention", "ffn") and each
        )

    def _place(self, index: int) -> dict[str, Any]:
        means = self.sums[index].values()
        size, position, coordinate = self.top.get(index, (math.nan, -1, -1))
        top = {"max_magnitude": size, "max_position": position, "max_coordinate": coordinate}
        return {**means, **top, "rms": means.get("norm", math.nan) / math.sqrt(max(self.width, 1))}

    def _angle(self, start: int, end: int) -> float:
        found = self.angles[start, end]
        return sum(found) / len(found) if found else math.nan

    def angular_matrix(self) -> tuple[tuple[float, ...], ...]:
        """[start][n - 1]: distance between the stream before layer `start` and n layers later, at the last token."""
        depth = max(self.sums, default=-1) + 1
        return tuple(tuple(self._angle(s - 1, s - 1 + n) for n in range(1, depth - s + 1)) for s in range(depth))


def _without_largest(x: Tensor, *, count: int = 3) -> Tensor:
    """x without the coordinates of the largest mean magnitude: a few rogue ones make all tokens look alike."""
    count = min(count, x.shape[-1] - 1)
    largest = x.abs().mean((0, 1)).topk(count).indices
    kept = torch.ones(x.shape[-1], dtype=torch.bool, device=x.device).index_fill_(0, largest, False)
    return x[..., kept]
