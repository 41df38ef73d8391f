"""The claims of the field about trained networks: a number per seed each, and confirmed, refuted or undecided by a t-test.

Numbers about layers are those of the *outputs* (what a branch adds), net of step 0: what a scheme's definition decides (how
it weighs what branches read) is there before the first step, and no finding about training. A claim about a scheme that
has not learned anything (its loss is not below that of single tokens) is undecided. p-values are corrected for the number
of claims on the page (Holm).
"""

from __future__ import annotations

import math
import statistics as stats
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from normlab.experiments.compare.result import ClaimOverSeeds, LossCurve, SchemeRuns
from normlab.experiments.runs.records import LayerRecord
from normlab.stats import Paired, gini, holm, paired

Row = SchemeRuns
Measure = Callable[[LayerRecord], float | None]
# Between the second and the last quarter of depth a stream that grows like the square root gains log(sqrt(7/3)) = 0.42.
BOUNDED = 0.21
LONG = 1000
"""Steps; shorter runs rank who leaves the start first: what they say of layers and of the decay is no finding."""


@dataclass(frozen=True)
class Draft:
    """A claim before the others of its page are known. `sign`: the side of `margin` that it puts the number on; 0 where it
    says only that it is not zero. `idle`: schemes that have learned nothing. `vain`: why a number on the right side would
    not confirm it. `early`: why runs like these cannot decide it."""

    text: str
    number: str
    values: list[float]
    sign: int
    idle: tuple[str, ...] = ()
    margin: float = 0.0
    vain: str = ""
    early: str = ""

    @property
    def test(self) -> Paired:
        return paired([value - self.margin for value in self.values])

    def settled(self, test: Paired) -> ClaimOverSeeds:
        """With the test as Holm leaves it."""
        reason = ""
        if self.idle:
            verdict, reason = "undecided", f"{', '.join(self.idle)} did not get below the loss of single tokens"
        elif self.early:
            verdict, reason = "undecided", self.early
        elif not test.significant or test.mean is None:
            verdict = "undecided"
        else:
            verdict = "confirmed" if self.sign == 0 or test.mean * self.sign > 0 else "refuted"
            if verdict == "confirmed" and self.vain:
                verdict, reason = "undecided", self.vain
        return ClaimOverSeeds.of(
            self.text, self.number, self.values, test=test, verdict=verdict, reason=reason, margin=self.margin
        )


def settle(pages: Sequence[Sequence[Draft]]) -> list[list[ClaimOverSeeds]]:
    """The claims of each setting; all settings are on one page, and one family of tests."""
    tests = {f"{i}/{j}": draft.test for i, drafts in enumerate(pages) for j, draft in enumerate(drafts)}
    adjusted = holm(tests)
    return [[d.settled(adjusted[f"{i}/{j}"]) for j, d in enumerate(drafts)] for i, drafts in enumerate(pages)]


def claims(rows: Mapping[str, Row], depth: int) -> list[Draft]:
    """Each claim that the schemes at hand allow."""
    plain = _named(rows, "pre_norm")
    if not plain:
        return []
    pre = rows.get("pre_norm", plain[0])
    found = [
        claim("The stream of Pre-Norm grows with depth", "log of last quarter / first quarter of what branches read, net of "
              "step 0", _net(pre, stream_growth), +1, [pre]),
        claim("Deep layers of Pre-Norm put out more than early ones", "log of last quarter / first quarter of the outputs, "
              "net of step 0", _net(pre, output_growth), +1, [pre]),
        claim("Pre-Norm's gradients lean to early layers", "centre of the gradient shares, 0 the middle, -0.5 the first "
              "layer", list(_each(pre, gradient_centre).values()), -1, [pre]),
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


def _attn_res_claims(name: str, row: Row, pre: Row) -> list[Draft]:
    gaps = [gap for gap in decay_gaps(row, pre).values() if len(gap) > 1]
    ahead = not gaps or stats.fmean(gap[-1][1] for gap in gaps) < 0
    found = [
        claim(f"The layer outputs of {name} grow less with depth than Pre-Norm's", "difference of the logs of last / first "
              "quarter, each net of step 0", _net_pairs(row, pre, output_growth), -1, [row, pre], whole=True),
        claim(f"The layer outputs of {name} stay bounded", f"log of last quarter / second quarter, net of step 0; confirmed "
              f"below {BOUNDED}, half of what a square root gains", _net(row, late_growth), -1, [row], margin=BOUNDED,
              whole=True),
        claim(f"{name} spreads gradients more evenly than Pre-Norm", "Gini coefficient of the gradient shares, net of step "
              "0, minus Pre-Norm's", _net_pairs(row, pre, lambda r: gini(r.gradient_share) if r.gradient_share else None),
              -1, [row, pre], whole=True),
        claim(f"The gap of {name} to Pre-Norm widens in the decay phase", "gap at the end minus gap at the begin of the "
              "decay", [gap[-1][1] - gap[0][1] for gap in gaps], -1, [row, pre], whole=True,
              vain="" if ahead else f"{name} does not end below Pre-Norm: there is no lead that could widen"),
    ]  # fmt: skip
    period = row.period
    if period:
        what = (
            f"autocorrelation of the attention outputs' logs at {period} layers (a block), minus the mean over shorter lags, "
            "net of step 0"
        )
        values = _net(row, lambda record: periodicity(record, period))
        found.insert(
            2, claim(f"The layer outputs of {name} are periodic in its blocks", what, values, +1, [row], whole=True)
        )
    return found


def claim(
    text: str,
    number: str,
    values: Sequence[float],
    sign: int,
    about: Sequence[Row],
    *,
    margin: float = 0.0,
    vain: str = "",
    whole: bool = False,
) -> Draft:
    """`about`: the schemes that must have learned something. `whole`: it is about a whole training."""
    idle = tuple(row.scheme for row in about if row.learned is False)
    return Draft(text, number, list(values), sign, idle, margin, vain, _early(about) if whole else "")


def _early(rows: Sequence[Row]) -> str:
    """Why a claim about a whole training cannot be decided by these runs; empty where it can."""
    steps = max((curve.step[-1] for row in rows for curve in row.curve.values() if curve.step), default=0)
    return f"{steps} steps are early training; {LONG} or more are needed" if steps < LONG else ""


def _each(row: Row, measure: Measure) -> dict[int, float]:
    return _measured(row.per_seed, measure)


def _measured(records: Mapping[int, LayerRecord | None], measure: Measure) -> dict[int, float]:
    found = {seed: measure(record) for seed, record in records.items() if record is not None}
    return {seed: value for seed, value in found.items() if value is not None}


def _each_net(row: Row, measure: Measure) -> dict[int, float]:
    """At the end minus before the first step, in the seeds that have both."""
    start, end = _measured(row.at_start, measure), _measured(row.per_seed, measure)
    return {seed: value - start[seed] for seed, value in end.items() if seed in start}


def _net(row: Row, measure: Measure) -> list[float]:
    return list(_each_net(row, measure).values())


def _net_pairs(row: Row, base: Row, measure: Measure) -> list[float]:
    mine, theirs = _each_net(row, measure), _each_net(base, measure)
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def _pairs(row: Row, base: Row, measure: Measure) -> list[float]:
    mine, theirs = _each(row, measure), _each(base, measure)
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def decay_gaps(row: Row, base: Row) -> dict[int, list[tuple[int, float]]]:
    """(step, loss - the other's loss) from the begin of the decay on, for each seed that both finished."""
    return {seed: _gap(row.curve[seed], base.curve[seed]) for seed in shared_seeds(row, base)}


def shared_seeds(row: Row, base: Row) -> list[int]:
    """The seeds that both finished."""
    return [s for s, loss in row.losses.items() if loss is not None and base.losses.get(s) is not None]


def _gap(curve: LossCurve, base: LossCurve) -> list[tuple[int, float]]:
    other = dict(zip(base.step, base.loss, strict=True))
    pairs = zip(curve.step, curve.loss, strict=True)
    return [(step, loss - other[step]) for step, loss in pairs if step >= curve.decay_start and step in other]


# -- the numbers, from the measures of layers at the end of training --------------------------------------------------
def stream_growth(record: LayerRecord) -> float | None:
    """log( mean magnitude of the last quarter of the reads / of the first quarter )."""
    return _growth(record.magnitude, 0)


def output_growth(record: LayerRecord) -> float | None:
    """The same of what branches add."""
    return _growth(record.output, 0)


def late_growth(record: LayerRecord) -> float | None:
    """Of what branches add, from the second quarter on."""
    return _growth(record.output, 1)


def _growth(sizes: Sequence[float] | None, start: int) -> float | None:
    if not sizes:
        return None
    quarter = max(1, len(sizes) // 4)
    first, last = sum(sizes[start * quarter : (start + 1) * quarter]), sum(sizes[-quarter:])
    return math.log(last / first) if first > 0 and last > 0 else None


def periodicity(record: LayerRecord, period: int) -> float | None:
    """Autocorrelation of the log magnitudes of what attention adds, at one block, minus the mean over all shorter lags.

    Attention and FFN differ in every scheme, so only attention is looked at; the first block, which follows the embedding,
    is left out, and a straight line is taken off.
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
