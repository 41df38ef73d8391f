"""Gains, matrices, experts and copies: what the weights alone show."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

from normlab.probes.judge.outliers import Outlier, outliers
from normlab.probes.judge.verdicts import LIMITS, Evidence, Verdict, listed, verdict
from normlab.probes.measure.gradients import PullRow
from normlab.probes.measure.weights import GainRow, MatrixRow

Item = TypeVar("Item", GainRow, MatrixRow)
Found = tuple[str, Outlier]


def _by_name(rows: Iterable[Item], depth: int, value: Callable[[Item], float]) -> dict[str, list[float]]:
    """The value of every parameter over depth; nan where a layer has none of that name."""
    columns: dict[str, list[float]] = defaultdict(lambda: [math.nan] * depth)
    for row in rows:
        if 0 <= row.layer < depth:
            expert = getattr(row, "expert", None)
            name = row.name if expert is None else f"{row.name}[{expert}]"
            columns[name][row.layer] = value(row)
    return columns


def _outliers(
    f: Evidence,
    rows: Iterable[Item],
    value: Callable[[Item], float],
    *,
    least: float,
    low: bool = True,
    high: bool = True,
) -> list[Found]:
    columns = _by_name(rows, len(f.rows), value)
    found = [
        (name, each) for name, column in columns.items() for each in outliers(column, least=least, low=low, high=high)
    ]
    return sorted(found, key=lambda item: -item[1].fold)


def _named(found: list[Found]) -> tuple[int, ...]:
    return tuple(sorted({each.layer for _, each in found}))


def gain_outlier(f: Evidence) -> Verdict | None:
    found = _outliers(f, f.readings.gains, lambda row: row.median, least=LIMITS.gain_scale)
    if not found:
        return None
    name, worst = found[0]
    title = f"the gain of {name} in layer {worst.layer} is {worst.value:.3g}, its neighbours' {worst.usual:.3g}"
    return verdict("gain_outlier", "warn", title, value=worst.value, limit=LIMITS.gain_scale, layers=_named(found))


def gain_pattern(f: Evidence) -> Verdict | None:
    """Coordinates of one gain that stand out, have the wrong sign or are off, unlike in the layers around."""
    gains = f.readings.gains
    odd: list[tuple[GainRow, str, float]] = []
    for row in gains:
        if row.layer == 0:  # reads the embedding, whose coordinates have signs and sizes of their own
            continue
        same = [other for other in gains if other.name == row.name and other.layer != row.layer] or [
            other for other in gains if other.layer != row.layer
        ]
        if not same:
            continue
        for value, others, least, what in (
            (row.flipped, [o.flipped for o in same], LIMITS.share, "of its entries have the wrong sign"),
            (row.small, [o.small for o in same], LIMITS.share, "of its entries are zero, or nearly"),
        ):
            if value > least and value > 4 * max(sorted(others)[len(others) // 2], 0.01):
                odd.append((row, what, value))
    peaks = _outliers(f, gains, lambda row: row.peak, least=LIMITS.gain_peak, low=False)
    if not odd and not peaks:
        return None
    if odd:
        row, what, value = max(odd, key=lambda item: item[2])
        where = f"the gain of {row.name}" + (f" in layer {row.layer}" if row.layer >= 0 else "")
        layers = tuple(sorted({item[0].layer for item in odd if item[0].layer >= 0}))
        title, limit = f"{where}: {100 * value:.0f} % {what}", LIMITS.share
    else:
        name, worst = peaks[0]
        layers, value, limit = _named(peaks), worst.value, LIMITS.gain_peak
        title = (
            f"one entry of the gain of {name} in layer {worst.layer} is {value:.3g} times the median entry; "
            f"in its neighbours the largest is {worst.usual:.3g} times"
        )
    return verdict("gain_pattern", "warn", title, value=value, limit=limit, layers=layers)


def reset_gain(f: Evidence) -> Verdict | None:
    """A gain that never moved among gains that did: a layer that was started anew, or not loaded."""
    found = _outliers(f, f.readings.gains, lambda row: max(row.spread, 1e-6), least=LIMITS.reset, high=False)
    found = [(name, each) for name, each in found if each.value < 1e-4]
    if not found:
        return None
    layers, (name, worst) = _named(found), found[0]
    title = (
        f"the gain of {name} in layer {worst.layer} is the same in every coordinate; in its neighbours it varies by "
        f"{100 * worst.usual:.2g} %: {listed(layers)} may not have been trained, or not loaded"
    )
    return verdict("reset_gain", "warn", title, value=100 * worst.usual, limit=LIMITS.reset, layers=layers)


def matrix_outlier(f: Evidence) -> Verdict | None:
    plain = [row for row in f.readings.matrices if row.expert is None]
    matrices = [row for row in plain if not row.name.endswith("bias")]
    biases = [row for row in plain if row.name.endswith("bias")]
    found = _outliers(f, matrices, lambda row: row.rms, least=LIMITS.matrix_scale)
    # Biases are small and differ; one that dwarfs all others is seen here.
    found += [
        (name, each)
        for name, each in _outliers(f, biases, lambda row: row.rms, least=LIMITS.bias_scale, low=False)
        if each.value > LIMITS.bias and 0 < each.layer < len(f.rows) - 1
    ]
    if not found:
        return None
    name, worst = found[0]
    title = f"{name} of layer {worst.layer} has entries of {worst.value:.3g} (RMS), in its neighbours {worst.usual:.3g}"
    return verdict("matrix_outlier", "warn", title, value=worst.value, limit=LIMITS.matrix_scale, layers=_named(found))


def row_outlier(f: Evidence) -> Verdict | None:
    """One unit of a matrix that outweighs the others, as in no layer around."""
    matrices = [row for row in f.readings.matrices if not row.name.endswith("bias")]
    found = _outliers(f, matrices, lambda row: row.peak, least=LIMITS.row, low=False)
    if not found:
        return None
    name, worst = found[0]
    title = (
        f"one row or column of {name} in layer {worst.layer} is {worst.value:.3g} times the median one; in its neighbours "
        f"the largest is {worst.usual:.3g} times"
    )
    return verdict("row_outlier", "warn", title, value=worst.value, limit=LIMITS.row, layers=_named(found))


def zero_weights(f: Evidence) -> Verdict | None:
    """Rows, columns or most entries of a matrix that are off while the same matrix of other layers is not."""
    found: list[tuple[MatrixRow, float]] = []
    for row in f.readings.matrices:
        value = max(row.quiet, row.zeros)
        same = [max(o.quiet, o.zeros) for o in f.readings.matrices if o.name == row.name and o is not row]
        usual = sorted(same)[len(same) // 2] if same else 1.0
        if value > LIMITS.share and value > 3 * max(usual, 0.01):
            found.append((row, value))
    if not found:
        return None
    row, value = max(found, key=lambda item: item[1])
    expert = "" if row.expert is None else f", expert {row.expert},"
    title = f"{row.name}{expert} of layer {row.layer}: {100 * value:.0f} % of its rows, columns or entries are zero"
    layers = tuple(sorted({item[0].layer for item in found}))
    subject = "experts" if row.expert is not None else "weights"
    return verdict(
        "zero_weights", "bad", title, value=100 * value, limit=100 * LIMITS.share, layers=layers, subject=subject
    )


def low_rank(f: Evidence) -> Verdict | None:
    found = _outliers(f, f.readings.matrices, lambda row: row.rank, least=LIMITS.rank, high=False)
    if not found:
        return None
    name, worst = found[0]
    title = (
        f"{name} of layer {worst.layer} has an effective rank of {100 * worst.value:.2g} % of its size, "
        f"in its neighbours {100 * worst.usual:.2g} %"
    )
    return verdict("low_rank", "warn", title, value=100 * worst.value, limit=LIMITS.rank, layers=_named(found))


def expert_outlier(f: Evidence) -> Verdict | None:
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


def unused_experts(f: Evidence) -> Verdict | None:
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


def _even_routers(f: Evidence) -> list[int]:
    layers = {row.layer for row in f.readings.experts}
    return [i for i in layers if max(row.router_norm for row in f.readings.experts if row.layer == i) < 1e-6]


def duplicated_layers(f: Evidence) -> Verdict | None:
    if not f.duplicates:
        return None
    layers = tuple(sorted({i for twin in f.duplicates for i in (twin.layer, twin.next)}))
    value = max(twin.cosine for twin in f.duplicates)
    title = f"{listed(layers)} have the same weights (cosine {value:.3f})"
    return verdict("duplicated_layers", "warn", title, value=value, limit=LIMITS.duplicate, layers=layers)


def unsettled_weights(f: Evidence) -> Verdict | None:
    """A parameter that the loss wants much larger or smaller: training ends where no scale is pulled at.

    Weight decay holds the ends back (head, embedding, first and last layer), so more is asked of them.
    """
    said = f.readings.output
    if said is None:  # a loss that we made up is not what the model was trained on
        return None
    if said.chance and said.loss > said.chance:  # everything is pulled at
        return None
    inner = range(1, len(f.rows) - 1)
    limits = {row: LIMITS.pull if row.layer in inner else LIMITS.pull_ends for row in f.readings.pulls}
    found = [row for row, limit in limits.items() if abs(row.pull) > limit]
    if not found:
        return None
    worst = max(found, key=lambda row: abs(row.pull) / limits[row])
    where = f"{worst.name} of layer {worst.layer}" if worst.layer >= 0 else worst.name
    word = "smaller" if worst.pull > 0 else "larger"
    value = abs(worst.pull)
    title = f"the loss wants {where} {word}: a tenth of its scale would gain {0.1 * value:.2g} nats (pull {value:.3g})"
    near = [row for row in found if abs(row.pull) > 0.5 * value]
    layers = tuple(sorted({row.layer for row in near if row.layer >= 0}))
    return verdict(
        "unsettled_weights", "warn", title, value=value, limit=limits[worst], layers=layers, subject=_part(worst)
    )


def _part(row: PullRow) -> str:
    """Which part of the model a parameter outside of the layers belongs to, by its name."""
    if row.layer >= 0:
        return "weights"
    return "embeddings" if "embed" in row.name else "final_norm" if "norm" in row.name.lower() else "weights"


RULES = (
    duplicated_layers,
    zero_weights,
    expert_outlier,
    gain_outlier,
    gain_pattern,
    reset_gain,
    low_rank,
    matrix_outlier,
    row_outlier,
    unsettled_weights,
    unused_experts,
)
