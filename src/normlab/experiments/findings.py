"""What the numbers of a comparison support, as sentences: one per scheme, and the answer."""

from __future__ import annotations

from typing import Any

from normlab.experiments.statistics import Paired


def statement(row: dict[str, Any], base: dict[str, Any]) -> str:
    """One or two sentences about a scheme, with the test that supports them."""
    name, reference, test = row["scheme"], base["scheme"], row["difference"]
    if row["mean"] is None:
        return f"{name} diverged at every learning rate that was tried."
    note = _rate_note(row) + _learning_note(row)
    if row is base:
        return f"{name} is the baseline: loss {row['mean']:.4f} at its best learning rate {row['lr']:.2g}.{note}"
    lost = f" {row['diverged']} of its {len(row['losses'])} seeds diverged." if row["diverged"] else ""
    if test.n == 0:
        return f"{name} shares no finished seed with {reference}: nothing can be said.{lost}{note}"
    size = f"{abs(test.mean):.4f} {'below' if test.mean < 0 else 'above'} {reference}"
    if test.p is None:
        return f"{name} ends {size} on one seed: one pair allows no test, so nothing is established.{lost}{note}"
    how = f"95 % interval {test.low:+.4f} to {test.high:+.4f}, paired over {test.n} seeds, {_p(test)}"
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


def suggested(test: Paired) -> bool:
    """Below 5 % by itself, but not after the correction."""
    return not test.significant and test.p is not None and test.p < 0.05


def _p(test: Paired) -> str:
    adjusted = "" if test.adjusted is None else f", {test.adjusted:.2g} after Holm's correction"
    return f"p = {test.p:.2g}{adjusted}"


def _rate_note(row: dict[str, Any]) -> str:
    if row["at_edge"] is None:
        return ""
    return f" Its best learning rate is the {row['at_edge']} one tried: a better one may lie outside the grid."


def _learning_note(row: dict[str, Any]) -> str:
    if row["learned"] is not False:
        return ""
    return " It did not get below the loss of single tokens: it learned frequencies, at most."


def answer(result: dict[str, Any]) -> list[str]:
    """Three sentences: what is best, what is established, what it costs."""
    rows, base = result["schemes"], result["baseline"]
    setting = result["setting"]
    alive = [row for row in rows if row["mean"] is not None]
    where = f"{setting['depth']} layers of width {setting['dim']}, {setting['tokens']:,} training tokens"
    if not alive:
        return [f"At {where}, every scheme diverged at every learning rate."]
    first = alive[0]
    seeds = len(first["losses"])
    lowest = f"{first['scheme']} has the lowest held-out loss, {first['mean']:.4f}"
    one = f"At {where} and {seeds} seed{'s' * (seeds != 1)}, {lowest}."
    if first["learned"] is False:
        one = f"{one[:-1]}, which is not below the loss of single tokens: no scheme learned more than frequencies."
    better = [
        r["scheme"] for r in alive if r["scheme"] != base and r["difference"].significant and r["difference"].mean < 0
    ]
    worse = [
        r["scheme"] for r in alive if r["scheme"] != base and r["difference"].significant and r["difference"].mean > 0
    ]
    maybe = [r["scheme"] for r in alive if r["scheme"] != base and suggested(r["difference"])]
    untested = [r["scheme"] for r in alive if r["scheme"] != base and r["difference"].p is None]
    known = (base, *maybe, *better, *worse, *untested)
    same = [r["scheme"] for r in alive if r["scheme"] not in known]
    parts = [f"{', '.join(better)} better than {base}"] if better else []
    parts += [f"{', '.join(worse)} worse than {base}"] if worse else []
    parts += [f"a difference suggested but not established for {', '.join(maybe)}"] if maybe else []
    parts += [f"no difference from {base} found for {', '.join(same)}"] if same else []
    parts += [f"too few seeds for a test of {', '.join(untested)}"] if untested else []
    two = f"The paired test over seeds finds: {'; '.join(parts)}." if parts else f"Only {base} was run."
    gone = [r["scheme"] for r in rows if r["mean"] is None]
    two = two[:-1] + (f"; {', '.join(gone)} diverged." if gone else ".")
    return [one, two, _cost(alive, base)]


def _cost(rows: list[dict[str, Any]], base: str) -> str:
    speeds = {row["scheme"]: row["tokens_per_second"] for row in rows if row["tokens_per_second"]}
    if base not in speeds or len(speeds) < 2:
        return "Cost: see the table."
    slowest = min(speeds, key=lambda name: speeds[name])
    fastest = max(speeds, key=lambda name: speeds[name])
    times = {name: speeds[base] / speed for name, speed in speeds.items()}
    parts = [f"{slowest}, the slowest, takes {times[slowest]:.2f} times"] if slowest != base else []
    parts += [f"{fastest}, the fastest, takes {times[fastest]:.2f} times"] if fastest != base else []
    disturbed = any(row.get("clock") == "wall" for row in rows)
    how = " by the wall clock, beside whatever else the machine did" if disturbed else ""
    return f"For each token, {' and '.join(parts)} as long as {base}{how}."
