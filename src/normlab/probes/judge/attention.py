"""Attention of layers and of heads."""

from __future__ import annotations

import math
from collections import defaultdict

from normlab.probes.judge.outliers import outliers
from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, normal, verdict
from normlab.probes.measure.summary import finite, median
from normlab.probes.measure.table import HeadRow, column


def sees_the_future(f: ModelEvidence) -> Verdict | None:
    said = f.readings.output
    if said is None or said.leak is None or not said.leak > LIMITS.leak + 3 * (said.repeat or 0.0):
        return None
    where = (
        "before the first layer" if said.leak_layer is None else f"in the {said.leak_part} of layer {said.leak_layer}"
    )
    title = f"earlier predictions change by {100 * said.leak:.3g} % when only the last token changes: it begins {where}"
    layers = () if said.leak_layer is None else (said.leak_layer,)
    subject = "branches" if said.leak_part == "ffn" else None
    limit = 100 * LIMITS.leak
    return verdict("sees_the_future", "bad", title, value=100 * said.leak, limit=limit, layers=layers, subject=subject)


def wrong_mask(f: ModelEvidence) -> Verdict | None:
    """A layer that sees less than it should: a window that nobody asked for, or one side of the text only."""
    said = f.readings.output
    masked = said is not None and said.kind == "masked"
    blind = [row for row in f.readings.masks if masked and row.length > 4 and row.ahead == 0 < row.back]
    if blind:
        title = (
            f"the attention of {listed([row.layer for row in blind])} looks back {blind[0].back} tokens and ahead "
            f"{blind[0].ahead}: a causal mask in a model that is asked for masked tokens"
        )
        layers = tuple(row.layer for row in blind)
        return verdict("wrong_mask", "bad", title, value=0.0, limit=1.0, layers=layers)
    short = [
        row for row in f.readings.masks if row.window != 0 and row.back + 2 < min(row.window or row.length, row.length)
    ]
    if not short:
        return None
    worst = min(short, key=lambda row: row.back)
    asked = f"its window should be {worst.window}" if worst.window else f"the text has {worst.length}"
    layers = tuple(row.layer for row in short)
    title = f"the attention of layer {worst.layer} reaches over {worst.back + 1} tokens; {asked} ({listed(layers)})"
    return verdict("wrong_mask", "bad", title, value=worst.back + 1, limit=worst.window or worst.length, layers=layers)


def twin_heads(f: ModelEvidence) -> Verdict | None:
    """Two heads of a layer that add the same, in one layer in three at most: elsewhere it is a design."""
    found = [row for row in f.readings.heads if (row.twin_cosine or 0.0) > LIMITS.twin]
    layers = tuple(sorted({row.layer for row in found}))
    if not found or len(layers) > max(1, len(f.rows) // 3):
        return None
    worst = max(found, key=lambda row: row.twin_cosine or 0.0)
    value = worst.twin_cosine or 0.0
    title = (
        f"heads {worst.head} and {worst.twin} of layer {worst.layer} add the same to every token (cosine {value:.4f})"
    )
    return verdict("twin_heads", "warn", title, value=value, limit=LIMITS.twin, layers=layers)


def attention_outlier(f: ModelEvidence) -> Verdict | None:
    """One layer that looks at one place, or at all alike, among layers that do neither."""
    entropy = column(f.rows, lambda row: row.entropy)
    sharp = outliers(entropy, least=LIMITS.entropy, high=False, kinds=f.kinds)
    room = [max(1 - value, 0.0) + 0.002 for value in entropy]  # to the maximum
    flat = outliers(room, least=LIMITS.flat, high=False, kinds=f.kinds)
    found = [*((each.layer, each.value, each.usual) for each in sharp)]
    found += [(each.layer, 1 - each.value + 0.002, 1 - each.usual + 0.002) for each in flat]
    if not found:
        return None
    layer, value, usual = found[0]
    title = f"the attention of layer {layer} has an entropy of {value:.3f} of the maximum, its neighbours {usual:.3f}"
    layers = tuple(sorted({each[0] for each in found}))
    return verdict("attention_outlier", "warn", title, value=value, limit=LIMITS.entropy, layers=layers)


def head_outlier(f: ModelEvidence) -> Verdict | None:
    """A head that writes far less or far more than the others of its layer."""
    layers: dict[int, list[HeadRow]] = defaultdict(list)
    for row in f.readings.heads:
        if row.output is not None:
            layers[row.layer].append(row)
    apart: list[tuple[float, HeadRow, float]] = []
    for rows in layers.values():
        for row in rows if len(rows) > 2 else ():
            others = sorted(other.output or 0.0 for other in rows if other is not row)
            usual = max(others[len(others) // 2], 1e-12)
            apart.append((math.log(max(row.output or 0.0, 1e-9) / usual), row, usual))
    if not apart:
        return None
    rest = median([abs(log) for log, _, _ in apart])
    low, high = max(math.log(LIMITS.head_low), 5 * rest), max(math.log(LIMITS.head_high), 5 * rest)
    found = [(log, row, usual) for log, row, usual in apart if log < -low or log > high]
    if not found:
        return None
    _, row, usual = max(found, key=lambda item: abs(item[0]))
    value = (row.output or 0.0) / usual
    title = f"head {row.head} of layer {row.layer} writes {value:.3g} times what the other heads of its layer write"
    odd = tuple(sorted({each.layer for _, each, _ in found}))
    return verdict("head_outlier", "warn", title, value=value, limit=LIMITS.head_high, layers=odd)


def attention_dispersion(f: ModelEvidence) -> Verdict | None:
    entropy = column(f.rows, lambda row: row.entropy)
    layers = tuple(i for i, value in enumerate(entropy) if value > LIMITS.uniform)
    exponent = f.summary.max_weight_exponent
    if len(layers) < 0.5 * max(len(finite(entropy)), 1):
        return None
    value = median([entropy[i] for i in layers])
    decay = f"; the largest weight falls as length^{exponent:.2f}" if math.isfinite(exponent) else ""
    title = f"attention is nearly uniform (entropy {value:.3f} of the maximum) in {listed(layers)}{decay}"
    usual = f"{normal(lambda s: s.entropy, of='entropy')}; {normal(lambda s: s.max_weight_exponent, of='exponent')}"
    said = f.readings.output
    growing = said is not None and said.loss > LIMITS.grown * said.frequencies  # attention starts uniform
    severity, limit = "note" if growing else "warn", LIMITS.uniform
    return verdict("attention_dispersion", severity, title, value=value, limit=limit, layers=layers, normal=usual)


def attention_sinks(f: ModelEvidence) -> Verdict | None:
    masses = column(f.rows, lambda row: row.sink_mass)
    layers = tuple(i for i, value in enumerate(masses) if value > LIMITS.sink)
    if len(layers) < max(1, 0.25 * len(finite(masses))):
        return None
    value = max(finite(masses))
    place = f.rows[masses.index(value)].sink_position or 0
    title = f"up to {100 * value:.0f} % of the attention goes to position {place}, in {listed(layers)}"
    usual = normal(lambda s: s.sink_mass, of=f"mean over layers {f.summary.sink_mass:.3g} here;")
    return verdict("attention_sinks", "note", title, value=value, limit=LIMITS.sink, layers=layers, normal=usual)


RULES = (
    sees_the_future,
    wrong_mask,
    twin_heads,
    head_outlier,
    attention_outlier,
    attention_dispersion,
    attention_sinks,
)
