"""The table that sums up Pre-Norm and Post-Norm: nine rows, a measured number on each side, from the claims' evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from normlab.errors import InputError
from normlab.experiments.claims.criteria import Exponent
from normlab.experiments.claims.evidence import Evidence
from normlab.results import Plain, as_row

Known = Mapping[str, Evidence]
Read = Callable[[Evidence, str], float]
Side = Callable[[float], bool]


@dataclass(frozen=True)
class SaidAndMeasured:
    """What is said of both, what was measured, and whether the numbers lie on the stated sides (None: not measured)."""

    what: str
    number: str
    pre_said: str
    pre: float | None
    post_said: str
    post: float | None
    holds: bool | None
    claim: str

    def to_dict(self) -> dict[str, Plain]:
        return as_row(self)


@dataclass(frozen=True)
class _Row:
    what: str
    number: str
    pre_said: str
    post_said: str
    claim: str
    evidence: str
    read: Read
    pre_holds: Side
    post_holds: Side
    post: tuple[str, Read] | None = None
    """Where Post-Norm's number is another: its evidence and how it is read."""

    def measured(self, known: Known) -> SaidAndMeasured:
        evidence, read = self.post or (self.evidence, self.read)
        found, other = known.get(self.evidence), known.get(evidence)
        pre = post = None
        if found is not None and other is not None:
            try:
                pre, post = self.read(found, "pre_norm"), read(other, "post_norm")
            except InputError:  # measured for another claim, without this arm
                pre = post = None
        holds = None if pre is None or post is None else self.pre_holds(pre) and self.post_holds(post)
        return SaidAndMeasured(self.what, self.number, self.pre_said, pre, self.post_said, post, holds, self.claim)


def _mean(metric: str, suffix: str = "", at: float | None = None) -> Read:
    return lambda evidence, scheme: fmean(evidence.find(metric, scheme + suffix).column(at))


def _exponent(metric: str, suffix: str = "", start: float = 0.0) -> Read:
    fit = Exponent(metric, start=start)
    return lambda evidence, scheme: fmean(fit.slopes(evidence.find(metric, scheme + suffix)))


def _gain(evidence: Evidence, scheme: str) -> float:
    without, with_it = (evidence.find("best loss", f"{scheme}, {arm}").column() for arm in ("no warm-up", "warm-up"))
    return fmean(a - b for a, b in zip(without, with_it, strict=True))


TORCH = "difference from torch.nn's encoder layers"
ROWS = (
    _Row("the equations", "largest difference from torch.nn's layers", "x + F(N(x)), a final norm", "N(x + F(x))",
         "004-01", "004-01", lambda e, _: max(e.find(TORCH).column()), lambda v: v < 1e-5, lambda v: v < 1e-5),
    _Row("size of the stream", "exponent of its rms in depth, 96 layers", "grows like sqrt(L)", "constant", "000-03",
         "deep-stream", _exponent("rms of the stream", ", paper init", 8), lambda v: 0.4 < v < 0.6, lambda v: abs(v) < 0.1),
    _Row("gradient of the last layer", "exponent in depth", "falls like 1/sqrt(L)", "does not depend on L", "001-09",
         "mean-field", _exponent("gradient of the last FFN by depth"), lambda v: -0.6 < v < -0.4, lambda v: abs(v) < 0.1),
    _Row("gradient over layers", "W1, first layer over last, in the decoder of an encoder-decoder 6-6", "about uniform",
         "decays to the input", "001-10", "gradients-by-matrix",
         _mean("W1 gradient, first layer over last", ", encoder-decoder 6-6"), lambda v: 0.5 < v < 2, lambda v: v < 0.5),
    _Row("warm-up", "nats lost without it", "not needed", "needed", "004-05", "warmup-map", _gain,
         lambda v: v < 0.1, lambda v: v > 0.1),
    _Row("learning rate", "highest that learns", "large", "small", "001-12", "rates-map", _mean("highest rate that learns"),
         lambda _: True, lambda _: True),
    _Row("speed", "steps to Post-Norm's final loss", "fast", "slow", "001-13", "rates", _mean("steps to the reference loss"),
         lambda _: True, lambda _: True),
    _Row("contribution of a layer", "Pre-Norm: exponent of its share in depth; Post-Norm: share of the last of 96 layers",
         "falls like 1/sqrt(l)", "stays significant", "001-16", "deep-stream",
         _exponent("share of a layer in norm", ", paper init", 8), lambda v: -0.6 < v < -0.4, lambda v: v > 0.3,
         post=("deep-stream", _mean("share of the last of 96 layers in norm", ", paper init"))),
    _Row("use of depth", "nats lost by removing a quarter of the layers", "poor", "good", "001-22", "pruning",
         _mean("loss added by removing a quarter of the layers"), lambda _: True, lambda _: True),
)  # fmt: skip
COMPARED = {"001-12": "pre above", "001-13": "pre below", "001-22": "post above"}
"""Rows that say nothing of one side alone: the two numbers are compared."""


def summary(known: Known) -> list[SaidAndMeasured]:
    """The nine rows; a row without evidence has no numbers."""
    return [_compared(row.measured(known)) for row in ROWS]


def _compared(row: SaidAndMeasured) -> SaidAndMeasured:
    how = COMPARED.get(row.claim)
    if how is None or row.pre is None or row.post is None:
        return row
    holds = {"pre above": row.pre > row.post, "pre below": row.pre < row.post, "post above": row.post > row.pre}[how]
    return SaidAndMeasured(row.what, row.number, row.pre_said, row.pre, row.post_said, row.post, holds, row.claim)
