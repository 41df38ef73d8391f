"""What the attention weights of each layer do, reduced while they stream."""

from __future__ import annotations

from collections import Counter, defaultdict

import torch
from torch import Tensor

from normlab.probes.measure import metrics
from normlab.probes.measure.stream import Means
from normlab.probes.measure.table import AttentionRow, HeadRow
from normlab.probes.trace.hooks import Record


class AttentionStatistics:
    """Entropy, largest weight, sink mass and the size of what attention returns, per layer and per head."""

    def __init__(self, text: Tensor | None = None) -> None:
        self.text = text  # [batch, tokens], where the batch is not padding
        self.sums: dict[int, Means] = defaultdict(Means)
        self.positions: dict[int, Counter[int]] = defaultdict(Counter)
        self.heads: dict[int, dict[str, Tensor]] = {}
        self.unmeasured: dict[int, str] = {}

    def __call__(self, record: Record) -> None:
        sums = self.sums[record.index]
        with torch.no_grad():
            if record.attended is not None:
                late = record.attended[:, record.attended.shape[1] // 2 :].float()
                if self.text is not None:
                    late = late[self.text[:, self.text.shape[1] // 2 :].to(late.device)]
                sums.add(attention_output_rms=float(late.square().mean().sqrt()))
            if record.weights is None or record.weights.shape[-1] < 2:
                if record.unmeasured:
                    self.unmeasured[record.index] = record.unmeasured
                return
            found = [self._read(record.index, weights) for weights in self._trimmed(record.weights)]
            heads = {name: torch.cat([each[name] for each in found]).mean(0) for name in found[0]}
            sums.add(**{name: float(values.mean()) for name, values in heads.items()})
            if record.mixed is not None and record.projection is not None:
                heads["output"] = _sizes(record.mixed, record.projection, len(heads["entropy"]), self.text)
            self.heads[record.index] = heads

    def _trimmed(self, weights: Tensor) -> list[Tensor]:
        """Weights without padding: one sequence at a time where there is some."""
        if self.text is None or self.text.shape != weights.shape[:1] + weights.shape[-1:]:
            return [weights]
        rows = [text.to(weights.device) for text in self.text]
        return [
            one[None][..., text, :][..., text] for one, text in zip(weights, rows, strict=True) if int(text.sum()) > 2
        ]

    def _read(self, index: int, weights: Tensor) -> dict[str, Tensor]:
        mass, position = metrics.sink(weights)
        self.positions[index].update(int(place) for place in position.flatten().tolist())
        return {
            "entropy": metrics.normalised_entropy(weights),
            "max_weight": metrics.max_weight(weights),
            "sink_mass": mass,
        }

    def rows(self) -> list[AttentionRow]:
        return [self._row(index) for index in sorted(self.sums)]

    def _row(self, index: int) -> AttentionRow:
        means = self.sums[index].values()
        if index not in self.heads:
            return AttentionRow(index, **means, unmeasured=self.unmeasured.get(index))
        places = self.positions[index]
        parked = float((self.heads[index]["sink_mass"] > 0.5).float().mean())
        return AttentionRow(
            index, **means, sink_position=max(places, key=lambda place: places[place]), sink_heads=parked
        )

    def head_rows(self) -> tuple[HeadRow, ...]:
        return tuple(
            HeadRow(layer, head, **{name: float(each[head]) for name, each in values.items()})
            for layer, values in sorted(self.heads.items())
            for head in range(len(values["entropy"]))
        )


def _sizes(mixed: Tensor, projection: Tensor, heads: int, text: Tensor | None) -> Tensor:
    """RMS over tokens of what each head adds: its slice of the projection, applied to its part of the mixed values."""
    tokens = mixed.reshape(-1, mixed.shape[-1]).float()
    if text is not None and text.numel() == len(tokens):
        tokens = tokens[text.flatten().to(tokens.device)]
    tokens = tokens[:: max(1, len(tokens) // 512)]
    parts = tokens.reshape(len(tokens), heads, -1).transpose(0, 1)  # [heads, tokens, width]
    slices = projection.float().reshape(len(projection), heads, -1).permute(1, 2, 0)  # [heads, width, d]
    sizes: Tensor = (parts @ slices).square().sum(-1).mean(-1).sqrt()
    return sizes
