"""Weights on a grid: few values in some matrices, and scales that belong to other layers."""

from __future__ import annotations

from collections import defaultdict

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, verdict
from normlab.probes.judge.weights.columns import layers_of, odd_layers
from normlab.probes.judge.weights.matrices import whole
from normlab.probes.measure.weights import MatrixRow


def few_values(f: ModelEvidence) -> Verdict | None:
    """A layer that was rounded far more coarsely than the others, or matrices of two to four values a row."""
    found = odd_layers(f, whole(f), lambda row: row.distinct, least=LIMITS.distinct, high=False)
    counts = [(row, row.values) for row in whole(f) if row.values is not None and row.rms > 0]
    coarse = [row for row, count in counts if count <= LIMITS.values]
    if coarse and not found:
        row, layers = coarse[0], tuple(sorted({row.layer for row in coarse}))
        title = f"a row of {row.name} in layer {row.layer} has {row.values:g} different values ({listed(layers)})"
        return verdict("few_values", "warn", title, value=row.values or 0.0, limit=LIMITS.values, layers=layers)
    if not found:
        return _coarser(f)
    name, worst = found[0]
    title = (
        f"a row of {name} in layer {worst.layer} has {100 * worst.value:.3g} % as many different values as entries, in its "
        f"neighbours {100 * worst.usual:.3g} %"
    )
    layers = layers_of(found)
    return verdict("few_values", "warn", title, value=100 * worst.value, limit=LIMITS.distinct, layers=layers)


def _coarser(f: ModelEvidence) -> Verdict | None:
    """Matrices, or experts, of at most 16 values a row, where others of the same name have many times as many.

    The first and the last layer are often kept finer than the others: they do not count as finer.
    """
    names: dict[str, list[MatrixRow]] = defaultdict(list)
    for row in f.readings.matrices:
        if row.values is not None and row.rms > 0:
            names[row.name].append(row)
    found: list[tuple[MatrixRow, float]] = []
    for rows in names.values():
        inner = [row.values or 0.0 for row in rows if 0 < row.layer < len(f.rows) - 1]
        most = max(inner, default=0.0)
        found += [(row, most) for row in rows if (row.values or 0.0) <= min(LIMITS.levels, most / LIMITS.distinct)]
    if not found:
        return None
    row, most = min(found, key=lambda item: item[0].values or 0.0)
    expert = "" if row.expert is None else f", expert {row.expert},"
    layers = tuple(sorted({each.layer for each, _ in found}))
    title = (
        f"a row of {row.name}{expert} in layer {row.layer} has {row.values:g} different values, elsewhere {most:g} "
        f"({listed(layers)})"
    )
    subject = "experts" if row.expert is not None else "weights"
    value = row.values or 0.0
    return verdict("few_values", "warn", title, value=value, limit=LIMITS.levels, layers=layers, subject=subject)


def copied_scales(f: ModelEvidence) -> Verdict | None:
    """Two layers whose rows have the same lengths to the last digit, though the matrices differ."""
    found = f.readings.scales
    if not found:
        return None
    layers = tuple(sorted({layer for twin in found for layer in (twin.layer, twin.next)}))
    first = found[0]
    title = (
        f"the rows of {first.name} have the same lengths in {listed((first.layer, first.next))}, though the matrices differ "
        f"(cosine {first.cosine:.3f}); {len(found)} pair{'s' if len(found) > 1 else ''} in {listed(layers)}"
    )
    return verdict("copied_scales", "warn", title, value=first.cosine, limit=LIMITS.duplicate, layers=layers)


RULES = (few_values, copied_scales)
