"""What the numbers of a comparison support, as sentences: one per scheme, the field's claims, and the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from normlab.experiments.statistics import Paired, paired
from normlab.probes.metrics import gini

Rows = Mapping[str, dict[str, Any]]


def statement(row: dict[str, Any], base: dict[str, Any]) -> str:
    """One or two sentences about a scheme, with the test that supports them."""
    name, reference, test = row["scheme"], base["scheme"], row["difference"]
    if row["mean"] is None:
        return f"{name} diverged at every learning rate that was tried."
    note = _rate_note(row)
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
    better = [
        r["scheme"] for r in alive if r["scheme"] != base and r["difference"].significant and r["difference"].mean < 0
    ]
    worse = [
        r["scheme"] for r in alive if r["scheme"] != base and r["difference"].significant and r["difference"].mean > 0
    ]
    maybe = [r["scheme"] for r in alive if r["scheme"] != base and suggested(r["difference"])]
    same = [r["scheme"] for r in alive if r["scheme"] not in (base, *maybe) and not r["difference"].significant]
    parts = [f"{', '.join(better)} better than {base}"] if better else []
    parts += [f"{', '.join(worse)} worse than {base}"] if worse else []
    parts += [f"a difference suggested but not established for {', '.join(maybe)}"] if maybe else []
    parts += [f"no difference from {base} found for {', '.join(same)}"] if same else []
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
    return f"For each token, {' and '.join(parts)} as long as {base}."


# -- the claims of the field ------------------------------------------------------------------------------------------
def claims(rows: Rows, depth: int) -> list[dict[str, Any]]:
    """Each claim that the schemes at hand allow: its number per seed, and confirmed, refuted or undecided."""
    found = []
    if "pre_norm" in rows:
        pre = rows["pre_norm"]
        growth = _each(pre, magnitude_growth)
        found.append(_claim("The magnitude of Pre-Norm's stream grows with depth", "log of last quarter / first quarter",
                            list(growth.values()), +1))  # fmt: skip
        lean = _each(pre, gradient_centre)
        found.append(_claim("Pre-Norm's gradients lean to early layers", "centre of the gradient shares, 0 the middle, "
                            "-0.5 the first layer", list(lean.values()), -1))  # fmt: skip
        for name in ("attn_res", "block_attn_res"):
            if name in rows:
                found += _attn_res_claims(name, rows[name], pre)
        for name in ("ln_scaling", "mix_norm"):
            if name in rows:
                found.append(_claim(f"{name} changes the prune curve", f"loss added by removing {depth // 4} of {depth} "
                                    "layers, minus Pre-Norm's", _pairs(rows[name], pre, prune_cost), 0))  # fmt: skip
    return found


def _attn_res_claims(name: str, row: dict[str, Any], pre: dict[str, Any]) -> list[dict[str, Any]]:
    gaps = [gap[-1][1] - gap[0][1] for gap in row["decay_gap"]["seeds"].values() if len(gap) > 1]
    return [
        _claim(f"The stream of {name} grows less with depth than Pre-Norm's", "difference of the logs of last / first "
               "quarter", _pairs(row, pre, magnitude_growth), -1),
        _claim(f"{name} spreads gradients more evenly than Pre-Norm", "Gini coefficient of the gradient shares, minus "
               "Pre-Norm's", _pairs(row, pre, lambda r: gini(r["gradient_share"]) if r.get("gradient_share") else None),
               -1),
        _claim(f"The gap of {name} to Pre-Norm widens in the decay phase", "gap at the end minus gap at the begin of the "
               "decay", gaps, -1),
    ]  # fmt: skip


def _claim(text: str, number: str, values: list[float], sign: int) -> dict[str, Any]:
    """`sign`: the side of zero that the claim puts the number on; 0 where it says only that there is a difference."""
    test = paired(values)
    if not test.significant or test.mean is None:
        verdict = "undecided"
    else:
        verdict = "confirmed" if sign == 0 or test.mean * sign > 0 else "refuted"
    return {"claim": text, "number": number, "values": values, "verdict": verdict, **test.to_dict()}


def _each(row: dict[str, Any], measure: Callable[[dict[str, Any]], float | None]) -> dict[int, float]:
    found = {seed: measure(record) for seed, record in row["per_seed"].items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _pairs(row: dict[str, Any], base: dict[str, Any], measure: Callable[[dict[str, Any]], float | None]) -> list[float]:
    mine, theirs = _each(row, measure), _each(base, measure)
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def magnitude_growth(record: dict[str, Any]) -> float | None:
    """log( mean magnitude of the last quarter of the reads / of the first quarter )."""
    sizes = record.get("magnitude")
    if not sizes:
        return None
    quarter = max(1, len(sizes) // 4)
    first, last = sum(sizes[:quarter]), sum(sizes[-quarter:])
    return math.log(last / first) if first > 0 and last > 0 else None


def gradient_centre(record: dict[str, Any]) -> float | None:
    """Where the gradient norm sits on average: -0.5 the first layer, 0 the middle, 0.5 the last."""
    shares = record.get("gradient_share")
    if not shares or len(shares) < 2:
        return None
    return sum(share * i for i, share in enumerate(shares)) / (len(shares) - 1) - 0.5


def prune_cost(record: dict[str, Any]) -> float | None:
    """Loss added by removing the least useful quarter of the layers."""
    curve, skips = record.get("prune"), record.get("skip")
    if not curve or not skips or len(skips) < 4:
        return None
    return curve[len(skips) // 4] - curve[0]
