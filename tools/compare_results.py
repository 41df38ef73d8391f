"""Write the tables of docs/results/README.md, between its marks, from a merged comparison.

normlab report runs/results-* --baseline pre_norm --out runs/table
python tools/compare_results.py docs/results/README.md runs/table/comparison.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"


def losses(settings: dict[int, dict[str, Any]]) -> list[str]:
    """A row per scheme, the best of the first setting that has them all at the top."""
    widest = max(settings.values(), key=lambda setting: len(setting["schemes"]))
    head = [f"{depth} layers: loss, vs {s['baseline']} (95 %), p (Holm)" for depth, s in settings.items()]
    deepest = next(iter(settings))
    costs = {row["scheme"]: row["cost"] for row in settings[deepest]["schemes"]}
    head.append(f"step time at {deepest} layers (quartiles)")
    rows = [["scheme", *head], ["---"] * (len(head) + 1)]
    for scheme in (row["scheme"] for row in widest["schemes"]):
        found = ({row["scheme"]: row for row in s["schemes"]}.get(scheme) for s in settings.values())
        base = scheme == widest["baseline"]
        cost = costs.get(scheme)
        time = "-" if cost is None else f"{cost['time']:.2f} ({cost['low']:.2f} to {cost['high']:.2f})"
        rows.append([scheme, *("not run" if row is None else _loss(row, base=base) for row in found), time])
    return [f"| {' | '.join(row)} |" for row in rows]


def _loss(row: dict[str, Any], *, base: bool) -> str:
    if row["mean"] is None:
        return "diverged"
    text, gap = f"{row['mean']:.3f}", row.get("difference")
    if gap and gap["mean"] is not None and not base:
        text += f", {gap['mean']:+.3f}"
        text += "" if gap["low"] is None else f" ({gap['low']:+.3f} to {gap['high']:+.3f})"
        text += "" if gap["adjusted"] is None else f", {gap['adjusted']:.3f}"
    return text + (" (best rate at the end of the grid)" if row["at_edge"] else "")


def claims(settings: dict[int, dict[str, Any]]) -> list[str]:
    table: dict[str, dict[int, str]] = {}
    for depth, setting in settings.items():
        for claim in setting["claims"]:
            name = claim["claim"] + (f"; {_share(claim['number'])}" if "prune" in claim["claim"] else "")
            mean = "" if claim["mean"] is None else f", {claim['mean']:+.3f}"
            reach = "" if claim["low"] is None else f" ({claim['low']:+.2f} to {claim['high']:+.2f})"
            table.setdefault(name, {})[depth] = f"{claim['verdict']}{mean}{reach}"
    head = [["claim of the field", *(f"{depth} layers" for depth in settings)], ["---"] * (len(settings) + 1)]
    body = [[name, *(found.get(depth, "-") for depth in settings)] for name, found in table.items()]
    return [f"| {' | '.join(row)} |" for row in head + body]


def _share(number: str) -> str:
    """`removing 3 of 12 layers` has another number at every depth; a quarter is a quarter."""

    def words(match: re.Match[str]) -> str:
        return f"removing {'a quarter' if int(match[1]) / int(match[2]) < 0.4 else 'half'} of the layers"

    return re.sub(r"removing (\d+) of (\d+) layers", words, number)


def main(page: str, comparison: str) -> None:
    found = json.loads(Path(comparison).read_text(encoding="utf-8"))["settings"]
    settings = dict(sorted(((s["setting"]["depth"], s) for s in found), reverse=True))
    path = Path(page)
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    lines = [*losses(settings), "", *claims(settings)]
    path.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
