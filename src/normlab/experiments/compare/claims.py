"""The claims of the field about trained networks: a number per seed each, and confirmed, refuted or undecided by a t-test.

A claim about a scheme that has not learned anything (its loss is not below that of single tokens) is undecided.
"""

from __future__ import annotations

import math
import statistics as stats
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from normlab.experiments.compare.result import Claim, Curve, SchemeRuns
from normlab.experiments.runs.records import LayerRecord
from normlab.stats import gini, paired

Row = SchemeRuns
Measure = Callable[[LayerRecord], float | None]
# Shorter runs rank who leaves the start first: what they say of gradients and of the decay is no finding.
LONG = 1000


def claims(rows: Mapping[str, Row], depth: int) -> list[Claim]:
    """Each claim that the schemes at hand allow."""
    plain = _named(rows, "pre_norm")
    if not plain:
        return []
    pre = rows.get("pre_norm", plain[0])
    found = [
        claim("The magnitude of Pre-Norm's stream grows with depth", "log of last quarter / first quarter",
              _values(pre, magnitude_growth), +1, [pre]),
        claim("Pre-Norm's gradients lean to early layers", "centre of the gradient shares, 0 the middle, -0.5 the first "
              "layer", _values(pre, gradient_centre), -1, [pre]),
    ]  # fmt: skip
    for row in _named(rows, "attn_res", "block_attn_res"):
        found += _attn_res_claims(row.scheme, row, pre)
    for row in _named(rows, "ln_scaling", "mix_norm"):
        for count in (depth // 4, depth // 2):
            what = f"loss added by removing {count} of {depth} layers, minus Pre-Norm's"
            values = _pairs(row, pre, partial(prune_cost, count=count))
            found.append(claim(f"{row.scheme} changes the prune curve", what, values, 0, [row, pre]))
    return found


def _named(rows: Mapping[str, Row], *names: str) -> list[Row]:
    """The rows of these schemes, whatever their options, in the order of the names."""
    return [row for name in names for key, row in rows.items() if key.partition("(")[0] == name]


def _attn_res_claims(name: str, row: Row, pre: Row) -> list[Claim]:
    gaps = [gap for gap in decay_gaps(row, pre).values() if len(gap) > 1]
    ahead = not gaps or stats.fmean(gap[-1][1] for gap in gaps) < 0
    early = _early(row)
    found = [
        claim(f"What layers of {name} put out grows less with depth than Pre-Norm's", "difference of the logs of last / "
              "first quarter of the outputs; 0 at the start, where both are one function", _pairs(row, pre, output_growth),
              -1, [row, pre]),
        claim(f"{name} spreads gradients more evenly than Pre-Norm", "Gini coefficient of the gradient shares, minus "
              "Pre-Norm's", _pairs(row, pre, lambda r: gini(r.gradient_share) if r.gradient_share else None),
              -1, [row, pre], early=early),
        claim(f"The gap of {name} to Pre-Norm widens in the decay phase", "gap at the end minus gap at the begin of the "
              "decay", [gap[-1][1] - gap[0][1] for gap in gaps], -1, [row, pre], early=early,
              vain="" if ahead else f"{name} does not end below Pre-Norm: there is no lead that could widen"),
    ]  # fmt: skip
    period = row.period
    if period:
        what = (
            f"autocorrelation of the layers' log outputs at {period} layers (a block), minus the mean over shorter lags"
        )
        values = _values(row, lambda record: periodicity(record, period))
        found.insert(1, claim(f"What layers of {name} put out is periodic in its blocks", what, values, +1, [row]))
    return found


def claim(
    text: str,
    number: str,
    values: Sequence[float],
    sign: int,
    about: Sequence[Row],
    *,
    margin: float = 0.0,
    early: str = "",
    vain: str = "",
) -> Claim:
    """`sign`: the side of `margin` that the claim puts the number on; 0 where it says only that it is not zero.

    `vain` is why a number on the right side would not confirm it.
    """
    test = paired([value - margin for value in values])
    reason = ""
    idle = [row.scheme for row in about if row.learned is False]
    if idle:
        verdict, reason = "undecided", f"{', '.join(idle)} did not get below the loss of single tokens"
    elif early:
        verdict, reason = "undecided", early
    elif not test.significant or test.mean is None:
        verdict = "undecided"
    else:
        verdict = "confirmed" if sign == 0 or test.mean * sign > 0 else "refuted"
        if verdict == "confirmed" and vain:
            verdict, reason = "undecided", vain
    return Claim.of(text, number, list(values), test=test, verdict=verdict, reason=reason, margin=margin)


def _early(row: Row) -> str:
    """Why a claim about a whole training cannot be decided by these runs; empty where it can."""
    steps = max((curve.step[-1] for curve in row.curve.values() if curve.step), default=0)
    return f"{steps} steps are early training; {LONG} or more are needed" if steps < LONG else ""


def _each(row: Row, measure: Measure) -> dict[int, float]:
    found = {seed: measure(record) for seed, record in row.per_seed.items() if record is not None}
    return {seed: value for seed, value in found.items() if value is not None}


def _values(row: Row, measure: Measure) -> list[float]:
    return list(_each(row, measure).values())


def _pairs(row: Row, base: Row, measure: Measure) -> list[float]:
    mine, theirs = _each(row, measure), _each(base, measure)
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def decay_gaps(row: Row, base: Row) -> dict[int, list[tuple[int, float]]]:
    """(step, loss - the other's loss) from the begin of the decay on, for each seed that both finished."""
    return {seed: _gap(row.curve[seed], base.curve[seed]) for seed in shared_seeds(row, base)}


def shared_seeds(row: Row, base: Row) -> list[int]:
    """The seeds that both finished."""
    return [s for s, loss in row.losses.items() if loss is not None and base.losses.get(s) is not None]


def _gap(curve: Curve, base: Curve) -> list[tuple[int, float]]:
    other = dict(zip(base.step, base.loss, strict=True))
    pairs = zip(curve.step, curve.loss, strict=True)
    return [(step, loss - other[step]) for step, loss in pairs if step >= curve.decay_start and step in other]


# -- the numbers, from the measures of layers at the end of training --------------------------------------------------
def magnitude_growth(record: LayerRecord) -> float | None:
    """log( mean magnitude of the last quarter of the reads / of the first quarter )."""
    return _growth(record.magnitude)


def output_growth(record: LayerRecord) -> float | None:
    """The same for what branches put out. What they read is bounded by construction where weights are a softmax."""
    return _growth(record.output)


def _growth(sizes: Sequence[float] | None) -> float | None:
    if not sizes:
        return None
    quarter = max(1, len(sizes) // 4)
    first, last = sum(sizes[:quarter]), sum(sizes[-quarter:])
    return math.log(last / first) if first > 0 and last > 0 else None


def periodicity(record: LayerRecord, period: int) -> float | None:
    """Autocorrelation of the log sizes of what layers put out, at one block, minus the mean over all shorter lags.

    Attention and FFN differ in every scheme, so only attention's outputs are looked at; the first block, which follows
    the embedding, is left out, and a straight line is taken off.
    """
    sizes = (record.output or [])[::2][period:]
    if len(sizes) < 3 * period or period < 2 or min(sizes) <= 0:
        return None
    logs, xs = [math.log(size) for size in sizes], list(range(len(sizes)))
    slope, start = stats.linear_regression(xs, logs)
    rest = [y - start - slope * x for x, y in zip(xs, logs, strict=True)]
    power = sum(r * r for r in rest) / len(rest)
    if power == 0:
        return None

    def at(lag: int) -> float:
        pairs = zip(rest, rest[lag:], strict=False)
        return stats.fmean(a * b for a, b in pairs) / power

    return at(period) - stats.fmean(at(lag) for lag in range(1, period))


def gradient_centre(record: LayerRecord) -> float | None:
    """Where the gradient norm sits on average: -0.5 the first layer, 0 the middle, 0.5 the last."""
    shares = record.gradient_share
    if not shares or len(shares) < 2:
        return None
    return sum(share * i for i, share in enumerate(shares)) / (len(shares) - 1) - 0.5


def prune_cost(record: LayerRecord, count: int) -> float | None:
    """Loss added by removing the `count` least useful layers."""
    curve = record.prune
    return curve[count] - curve[0] if curve and 0 < count < len(curve) else None
