"""What the attention weights of each layer do, reduced while they stream."""

from __future__ import annotations

from collections import Counter, defaultdict

import torch
from torch import Tensor

from normlab.probes.measure import metrics
from normlab.probes.measure.stream import Means
from normlab.probes.measure.table import AttentionRow
from normlab.probes.trace.hooks import Record


class AttentionStatistics:
    """Entropy, largest weight, sink mass and the size of what attention returns, per layer."""

    def __init__(self) -> None:
        self.sums: dict[int, Means] = defaultdict(Means)
        self.positions: dict[int, Counter[int]] = defaultdict(Counter)
        self.heads: dict[int, Tensor] = {}

    def __call__(self, record: Record) -> None:
        sums = self.sums[record.index]
        with torch.no_grad():
            if record.attended is not None:
                late = record.attended[:, record.attended.shape[1] // 2 :].float()
                sums.add(attention_output_rms=float(late.square().mean().sqrt()))
            weights = record.weights
            if weights is None or weights.shape[-1] < 2:
                return
            entropy = metrics.normalised_entropy(weights)
            mass, position = metrics.sink(weights)
            sums.add(entropy=float(entropy.mean()))
            sums.add(max_weight=float(metrics.max_weight(weights).mean()))
            sums.add(sink_mass=float(mass.mean()))
            self.positions[record.index].update(int(place) for place in position.flatten().tolist())
            self.heads[record.index] = mass.mean(0)

    def rows(self) -> list[AttentionRow]:
        return [self._row(index) for index in sorted(self.sums)]

    def _row(self, index: int) -> AttentionRow:
        means = self.sums[index].values()
        if index not in self.heads:
            return AttentionRow(index, **means)
        places = self.positions[index]
        parked = float((self.heads[index] > 0.5).float().mean())
        return AttentionRow(
            index, **means, sink_position=max(places, key=lambda place: places[place]), sink_heads=parked
        )
