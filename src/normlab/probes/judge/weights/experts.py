"""Experts and routers."""

from __future__ import annotations

import math
from collections import defaultdict

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, verdict
from normlab.probes.measure.weights import MatrixRow


def expert_outlier(f: ModelEvidence) -> Verdict | None:
    """An expert whose weights are far larger or smaller than those of the others of its layer, and of other layers."""
    groups: dict[tuple[int, str], list[MatrixRow]] = defaultdict(list)
    for row in f.readings.matrices:
        if row.expert is not None:
            groups[row.layer, row.name].append(row)
    found: list[tuple[MatrixRow, float]] = []
    for rows in groups.values():
        if len(rows) < 3:
            continue
        for row in rows:
            others = sorted(o.rms for o in rows if o is not row)
            usual = max(others[len(others) // 2], 1e-12)
            if not 1 / LIMITS.expert < row.rms / usual < LIMITS.expert:
                found.append((row, row.rms / usual))
    if not found:
        return None
    row, times = max(found, key=lambda item: abs(math.log(max(item[1], 1e-12))))
    title = f"expert {row.expert} of layer {row.layer}: its {row.name} is {times:.3g} times that of the other experts"
    layers = tuple(sorted({item[0].layer for item in found}))
    return verdict("expert_outlier", "warn", title, value=times, limit=LIMITS.expert, layers=layers)


def unused_experts(f: ModelEvidence) -> Verdict | None:
    found = [row for row in f.readings.experts if row.share < LIMITS.unused / row.experts]
    even = _even_routers(f)
    if not found and not even:
        return None
    layers = tuple(sorted({row.layer for row in found} | set(even)))
    if not found:
        title = f"the router of {listed(layers)} says the same to every token: its rows have a norm of 0"
        return verdict("unused_experts", "warn", title, value=0.0, limit=LIMITS.unused, layers=layers)
    worst = min(found, key=lambda row: row.share)
    title = (
        f"expert {worst.expert} of layer {worst.layer} gets {100 * worst.share:.2g} % of the choices; an even share is "
        f"{100 / worst.experts:.3g} %"
    )
    return verdict("unused_experts", "warn", title, value=100 * worst.share, limit=LIMITS.unused, layers=layers)


def _even_routers(f: ModelEvidence) -> list[int]:
    layers = {row.layer for row in f.readings.experts}
    return [i for i in layers if max(row.router_norm for row in f.readings.experts if row.layer == i) < 1e-6]


def copied_experts(f: ModelEvidence) -> Verdict | None:
    twins = f.readings.expert_twins
    if not twins:
        return None
    layers = tuple(sorted({twin.layer for twin in twins}))
    worst = max(twins, key=lambda twin: twin.cosine)
    title = (
        f"experts {worst.first} and {worst.second} of layer {worst.layer} have the same weights (cosine {worst.cosine:.3f}); "
        f"{len(twins)} pair{'s' if len(twins) > 1 else ''} in {listed(layers)}"
    )
    return verdict("copied_experts", "warn", title, value=worst.cosine, limit=LIMITS.duplicate, layers=layers)


RULES = (expert_outlier, copied_experts, unused_experts)
