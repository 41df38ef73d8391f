"""What the numbers of a comparison support, as sentences: one per scheme, and the answer."""

from __future__ import annotations

from collections.abc import Sequence

from normlab.experiments.compare.result import SchemeRow, SharedSetting
from normlab.experiments.timing import RelativeCost
from normlab.stats import Paired

SEEN = 0.05  # the busiest of many schemes differs by a few per cent from chance alone


def statement(row: SchemeRow, base: SchemeRow) -> str:
    """One or two sentences about a scheme, with the test that supports them."""
    name, reference, test = row.scheme, base.scheme, row.difference
    if row.mean is None:
        return f"{name} diverged at every learning rate that was tried."
    note = _rate_note(row) + _size_note(row, base) + _learning_note(row)
    if row is base:
        return f"{name} is the baseline: loss {row.mean:.4f} at its best learning rate {row.lr:.2g}.{note}"
    lost = f" {row.diverged} of its {len(row.losses)} seeds diverged." if row.diverged else ""
    if test.mean is None:
        return f"{name} shares no finished seed with {reference}: nothing can be said.{lost}{note}"
    size = f"{abs(test.mean):.4f} {'below' if test.mean < 0 else 'above'} {reference}"
    if test.p is None:
        return f"{name} ends {size}: {_why_untested(row, base)}, so nothing is established.{lost}{note}"
    fresh = row.without_tuning_seed
    how = f"95 % interval {test.low:+.4f} to {test.high:+.4f}, paired over {test.n} seeds, {_p(test)}"
    how += "" if fresh is None else f"; {fresh:+.4f} without the seed that chose the rate"
    if test.significant:
        return f"{name} ends {size} ({how}).{lost}{note}"
    if suggested(test):
        return (
            f"{name} ends {size} ({how}): suggested, but not established once the number of schemes that are compared is "
            f"accounted for.{lost}{note}"
        )
    return (
        f"No difference found between {name} and {reference}: {test.mean:+.4f} ({how}); with {test.n} seeds, differences "
        f"below about {test.half_width:.3f} cannot be seen.{lost}{note}"
    )


def _why_untested(row: SchemeRow, base: SchemeRow) -> str:
    if row.learned is False and base.learned is False:
        return "neither learned more than the frequencies of tokens"
    for one in (row, base):
        if one.diverged >= len(one.losses) - 1 and one.diverged:
            return f"{one.diverged} of {len(one.losses)} seeds of {one.scheme} diverged"
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


def answer(setting: SharedSetting, rows: Sequence[SchemeRow], base: str) -> list[str]:
    """Three sentences: what is best, what is established, what it costs."""
    alive = [row for row in rows if row.mean is not None]
    own = "" if setting.architecture is None else f"{setting.architecture}, "
    where = f"{own}{setting.depth} layers of width {setting.dim}, {setting.tokens:,} training tokens"
    if not alive:
        return [f"At {where}, every scheme diverged at every learning rate."]
    if all(row.learned is False for row in alive):
        gone = [row.scheme for row in rows if row.mean is None]
        lost = [f"{', '.join(gone)} diverged at every learning rate."] if gone else []
        return [_nothing_learned(setting, alive[0], where), *lost, _cost(alive, base)]
    first = alive[0]
    seeds = len(first.losses)
    lowest = f"{first.scheme} has the lowest held-out loss, {first.mean:.4f}"
    one = f"At {where} and {seeds} seed{'s' * (seeds != 1)}, {lowest}."
    better = [r.scheme for r in alive if r.scheme != base and r.difference.lower]
    worse = [r.scheme for r in alive if r.scheme != base and r.difference.higher]
    maybe = [r.scheme for r in alive if r.scheme != base and suggested(r.difference)]
    reference = next(row for row in rows if row.scheme == base)
    untested: dict[str, list[str]] = {}
    for row in alive:
        if row.scheme != base and row.difference.p is None:
            untested.setdefault(_why_untested(row, reference), []).append(row.scheme)
    known = (base, *maybe, *better, *worse, *(name for names in untested.values() for name in names))
    same = [r.scheme for r in alive if r.scheme not in known]
    parts = [f"{', '.join(better)} better than {base}"] if better else []
    parts += [f"{', '.join(worse)} worse than {base}"] if worse else []
    for side, word in ((-1, "better"), (1, "worse")):
        some = [r.scheme for r in alive if r.scheme in maybe and (r.difference.mean or 0.0) * side > 0]
        parts += [f"suggested to be {word}, not established: {', '.join(some)}"] if some else []
    parts += [f"no difference from {base} found for {', '.join(same)}"] if same else []
    parts += [f"no test of {', '.join(names)} ({why})" for why, names in untested.items()]
    two = f"The paired test over seeds finds: {'; '.join(parts)}." if parts else f"Only {base} was run."
    gone = [r.scheme for r in rows if r.mean is None]
    two = two[:-1] + (f"; {', '.join(gone)} diverged." if gone else ".")
    some = [f"{r.diverged} of {len(r.losses)} seeds of {r.scheme}" for r in alive if r.diverged]
    two = two[:-1] + (f"; {', '.join(some)} diverged, and its mean is that of the others." if some else ".")
    return [one, two, _cost(alive, base)]


def _nothing_learned(setting: SharedSetting, first: SchemeRow, where: str) -> str:
    floor = "" if setting.context_free_loss is None else f" of {setting.context_free_loss:.4f}"
    return (
        f"Nothing was learned: at {where}, no scheme got below the loss{floor} of single tokens, so this comparison ranks "
        f"nothing (the lowest is {first.mean:.4f}, of {first.scheme}). Train longer, with more --tokens or a larger "
        "--budget, or try other rates with --lrs."
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
