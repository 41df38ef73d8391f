"""What the numbers of a comparison support, as sentences: one per scheme, and the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from normlab.experiments.compare.budget import ENOUGH
from normlab.experiments.compare.result import (
    FEW_TOKENS,
    SchemeRow,
    SchemeRuns,
    SharedSetting,
    Untested,
    enough_tokens,
)
from normlab.experiments.timing import RelativeCost
from normlab.stats import Paired

FEW = 8  # schemes; of more, the table has the differences
SEEN = 0.05  # the busiest of many schemes differs by a few per cent from chance alone


def statement(row: SchemeRow, base: SchemeRow) -> str:
    """One or two sentences about a scheme, with the test that supports them."""
    name = row.scheme
    if row.mean is None:
        return f"{name} diverged at every learning rate that was tried."
    note = _rate_note(row) + _size_note(row, base) + _learning_note(row)
    if row is base:
        return f"{name} is the baseline: loss {row.mean:.4f} at its best learning rate {row.lr:.2g}.{note}"
    lost = f" {row.diverged} of its {len(row.losses)} seeds diverged." if row.diverged else ""
    beside = _beside_control(row)
    return f"{_difference(row, base)}{beside}{lost}{note}"


def _difference(row: SchemeRow, base: SchemeRow) -> str:
    name, reference, test = row.scheme, base.scheme, row.difference
    if test.mean is None:
        return f"{name} shares no finished seed with {reference}: nothing can be said."
    if row.untested == "few_tokens":
        return f"{name} minus {reference}: {test.mean:+.4f}{_interval(test)}."
    size = f"{abs(test.mean):.4f} {'below' if test.mean < 0 else 'above'} {reference}"
    if test.p is None:
        why = why_untested(row.untested, row, base)
        return f"{name} ends {size}{_interval(test)}: {why}, so nothing is established."
    fresh = row.without_tuning_seed
    how = f"95 % interval {test.low:+.4f} to {test.high:+.4f}, paired over {test.n} seeds, {_p(test)}"
    how += "" if fresh is None else f"; {fresh:+.4f} without the seed that chose the rate"
    if test.significant:
        return f"{name} ends {size} ({how})."
    if suggested(test):
        return (
            f"{name} ends {size} ({how}): suggested, but not established once the number of schemes that are compared is "
            "accounted for."
        )
    return (
        f"No difference found between {name} and {reference}: {test.mean:+.4f} ({how}); with {test.n} seeds, differences "
        f"below about {test.half_width:.3f} cannot be seen."
    )


def _interval(test: Paired) -> str:
    if test.low is None or test.high is None:
        return ""
    return f" (95 % interval {test.low:+.4f} to {test.high:+.4f}, paired over {test.n} seeds)"


def _beside_control(row: SchemeRow) -> str:
    """The same difference with equal starts."""
    test = row.against_control
    if test is None or test.mean is None:
        return ""
    verdict = "" if test.p is None else f", {_p(test)}"
    return f" Minus {row.control}: {test.mean:+.4f}{_interval(test)}{verdict}."


def why_untested(why: Untested | None, row: SchemeRuns, base: SchemeRuns) -> str:
    """The words for why there is no test."""
    if why == "nothing_learned":
        return "neither learned more than the frequencies of tokens"
    if why == "edge":
        one = row if row.at_edge else base
        return f"the best rate of {one.scheme} is the {one.at_edge} one tried"
    if why == "one_rate":
        one = row if len(row.rates) < 2 else base
        return f"only one rate of {one.scheme} was tried"
    if why == "diverged":
        one = next(r for r in (row, base) if r.diverged and r.diverged >= len(r.losses) - 1)
        return f"{one.diverged} of {len(one.losses)} seeds of {one.scheme} diverged"
    if why == "few_tokens":
        return "so few tokens were trained on"
    return "one pair of seeds allows no test"


def suggested(test: Paired) -> bool:
    """Below 5 % by itself, but not after the correction."""
    return not test.significant and test.p is not None and test.p < 0.05


def _p(test: Paired) -> str:
    adjusted = "" if test.adjusted is None else f", {test.adjusted:.2g} after Holm's correction"
    return f"p = {test.p:.2g}{adjusted}"


def _rate_note(row: SchemeRow) -> str:
    if row.at_edge is None:
        return ""
    return f" Its best learning rate is the {row.at_edge} one tried: a better one may lie outside the grid."


def _size_note(row: SchemeRow, base: SchemeRow) -> str:
    """Shapes are the same for all schemes; what a scheme brings of its own is not matched."""
    extra = row.parameters_ratio - 1
    if abs(extra) < 0.01:
        return ""
    return f" It has {100 * abs(extra):.0f} % {'more' if extra > 0 else 'fewer'} parameters than {base.scheme}."


def _learning_note(row: SchemeRow) -> str:
    if row.learned is not False:
        return ""
    return " It did not get below the loss of single tokens: it learned frequencies, at most."


def answer(setting: SharedSetting, rows: Sequence[SchemeRow], base: str, per_parameter: float | None) -> list[str]:
    """What is best, what is established, with equal starts too, and what it costs; no order of so short a training."""
    alive = [row for row in rows if row.mean is not None]
    own = "" if setting.architecture is None else f"{setting.architecture}, "
    where = f"{own}{setting.depth} layers of width {setting.dim}, {setting.tokens:,} training tokens"
    if not alive:
        return [f"At {where}, every scheme diverged at every learning rate."]
    gone = [row.scheme for row in rows if row.mean is None]
    lost = [f"{', '.join(gone)} diverged at every learning rate."] if gone else []
    if all(row.learned is False for row in alive):
        return [_nothing_learned(setting, where), *lost, _cost(alive, base)]
    seeds = len(alive[0].losses)
    begun = f"At {where} and {seeds} seed{'s' * (seeds != 1)}"
    reference = next(row for row in rows if row.scheme == base)
    if not enough_tokens(per_parameter):
        return [
            _too_few(setting, begun, reference, per_parameter),
            *_differences(alive, base),
            *lost,
            _cost(alive, base),
        ]
    first = alive[0]
    if _ordered(setting, alive):
        one = f"{begun}, {first.scheme} has the lowest held-out loss, {first.mean:.4f}."
    else:
        one = " ".join([f"{begun}, {base} ends at {_loss(reference)}.", *_differences(alive, base)])
    others = [(row, row.difference, why_untested(row.untested, row, reference)) for row in alive if row.scheme != base]
    parts = _verdicts(others, base)
    two = f"The paired test over seeds finds: {'; '.join(parts)}." if parts else f"Only {base} was run."
    two = two[:-1] + (f"; {', '.join(gone)} diverged." if gone else ".")
    some = [f"{r.diverged} of {len(r.losses)} seeds of {r.scheme}" for r in alive if r.diverged]
    two = two[:-1] + (f"; {', '.join(some)} diverged, and its mean is that of the others." if some else ".")
    return [one, two, *_with_equal_starts(alive), _cost(alive, base)]


def _ordered(setting: SharedSetting, alive: Sequence[SchemeRow]) -> bool:
    """May one be called the lowest? With one start, two random seeds, and every best rate inside its grid."""
    inside = all(row.at_edge is None and len(row.rates) > 1 and len(row.losses) > 1 for row in alive)
    return inside and setting.start == "fair" and setting.recipe != "authors"


def _loss(row: SchemeRow) -> str:
    return "no loss: it diverged" if row.mean is None else f"{row.mean:.4f}"


Tested = tuple[SchemeRow, Paired, str]
"""A row, a difference of it, and why that has no test where it has none."""


def _verdicts(tested: Sequence[Tested], reference: str) -> list[str]:
    """Who is better, worse, neither; and who was not tested."""
    better = [row.scheme for row, test, _ in tested if test.lower]
    worse = [row.scheme for row, test, _ in tested if test.higher]
    parts = [f"{', '.join(better)} better than {reference}"] if better else []
    parts += [f"{', '.join(worse)} worse than {reference}"] if worse else []
    for side, word in ((-1, "better"), (1, "worse")):
        maybe = [row.scheme for row, test, _ in tested if suggested(test) and (test.mean or 0.0) * side > 0]
        parts += [f"suggested to be {word}, not established: {', '.join(maybe)}"] if maybe else []
    same = [
        row.scheme for row, test, _ in tested if test.p is not None and not test.significant and not suggested(test)
    ]
    parts += [f"no difference from {reference} found for {', '.join(same)}"] if same else []
    untested: dict[str, list[str]] = {}
    for row, test, why in tested:
        if test.p is None:
            untested.setdefault(why, []).append(row.scheme)
    return parts + [f"no test of {', '.join(names)} ({why})" for why, names in untested.items()]


def _with_equal_starts(rows: Sequence[SchemeRow]) -> list[str]:
    """The same against Pre-Norm with each scheme's own start, where that is another than the baseline's."""
    known = {row.scheme: row for row in rows}
    tested = [
        (row, row.against_control, why_untested(row.untested_against_control, row, known[row.control]))
        for row in rows
        if row.against_control is not None and row.control in known
    ]
    if not tested:
        return []
    return [f"With equal starts (each beside its control) it finds: {'; '.join(_verdicts(tested, 'pre_norm'))}."]


def own_starts(known: Mapping[str, str]) -> str:
    """Which schemes begin otherwise, whatever the start, since that is what they are."""
    return (
        f"By their definition these begin otherwise: {'; '.join(f'{name} ({text})' for name, text in known.items())}."
    )


def _too_few(setting: SharedSetting, begun: str, base: SchemeRow, per_parameter: float | None) -> str:
    enough = math.ceil(ENOUGH * base.parameters / 1000) * 1000
    return (
        f"{begun}: {per_parameter:.2g} training tokens for each parameter of {base.scheme}. With fewer than {FEW_TOKENS:g} a "
        "loss mostly measures how a model begins, so no order is given: only differences and intervals. "
        f"--tokens {enough} trains on {ENOUGH:g}."
    )


def _differences(alive: Sequence[SchemeRow], base: str) -> list[str]:
    """Without a verdict."""
    known = [row for row in alive if row.scheme != base and row.difference.mean is not None]
    parts = [f"{row.scheme} {row.difference.mean:+.4f}{_reach(row.difference)}" for row in known[:FEW]]
    more = f"; and {len(known) - FEW} more in the table" if len(known) > FEW else ""
    return [f"Held-out loss minus that of {base} (95 % interval): {'; '.join(parts)}{more}."] if parts else []


def _reach(test: Paired) -> str:
    return "" if test.low is None or test.high is None else f" ({test.low:+.4f} to {test.high:+.4f})"


def _nothing_learned(setting: SharedSetting, where: str) -> str:
    floor = "" if setting.context_free_loss is None else f" of {setting.context_free_loss:.4f}"
    return (
        f"Nothing was learned: at {where}, no scheme got below the loss{floor} of single tokens, so this comparison ranks "
        "nothing. Train longer, with more --tokens or a larger --budget, or try other rates with --lrs."
    )


def _cost(rows: Sequence[SchemeRow], base: str) -> str:
    """The slowest and the fastest, where the quartiles of their steps beside the baseline's differ from it by 5 %."""
    costs = {row.scheme: row.cost for row in rows if row.cost and row.scheme != base}
    if not costs:
        return "Times were not measured scheme beside scheme; the table has the arithmetic and the memory."
    slowest = max(costs, key=lambda name: costs[name].time)
    fastest = min(costs, key=lambda name: costs[name].time)
    parts = [f"{slowest}, the slowest, takes {_times(costs[slowest])}"] if costs[slowest].low > 1 + SEEN else []
    parts += [f"{fastest}, the fastest, takes {_times(costs[fastest])}"] if costs[fastest].high < 1 - SEEN else []
    if not parts:
        return f"No scheme's training step was seen to take {100 * SEEN:.0f} % longer or shorter than {base}'s."
    return f"For a training step, {' and '.join(parts)} as long as {base} (median and quartiles of steps in turn)."


def _times(cost: RelativeCost) -> str:
    return f"{cost.time:.2f} times ({cost.low:.2f} to {cost.high:.2f})"
