"""How many layers a network can do without, and which of them matter."""

from __future__ import annotations

from collections.abc import Sequence

from normlab.stats import spearman


def prunable_share(curve: Sequence[float], *, layers: int, floor: float, tolerance: float = 0.01) -> float:
    """Share of the layers that can be removed together for less than `tolerance` of what was learnt.

    `curve[k]` is the loss without the k least useful layers; what was learnt is `floor` (the loss of a prediction without
    context) minus the loss of the whole. The first removal that costs more ends the count.
    """
    allowed = tolerance * (floor - curve[0])
    if allowed <= 0:
        return float("nan")
    removed = 0
    for loss in curve[1:]:
        if loss - curve[0] >= allowed:
            break
        removed += 1
    return removed / layers


def deep_over_early(costs: Sequence[float]) -> float:
    """What the deeper half of the layers costs when each is skipped alone, over both halves: 0.5 where depth plays no role.

    The first and the last layer stand next to the embedding and the head, and are left out. Gains count as zero.
    """
    inner = [max(0.0, cost) for cost in costs[1:-1]]
    half = len(inner) // 2
    early, deep = sum(inner[:half]), sum(inner[len(inner) - half :])
    return deep / (early + deep) if early + deep > 0 else float("nan")


def gradient_against_effect(shares: Sequence[float], costs: Sequence[float]) -> float:
    """Rank correlation, over layers, of a layer's gradient share and what skipping it costs."""
    return spearman(list(shares), list(costs))
