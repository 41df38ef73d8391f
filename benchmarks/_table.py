"""What all benchmarks found, as one table: a row for each ratio or number, with where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from normlab.report.tables import markdown_table

NAMED = ("candidate", "scheme", "n")
COLUMNS = ("benchmark", "what", "value", "quartiles")


def rows(benchmark: str, found: object, where: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Every ratio with its quartiles, and every other number, below `found`."""
    here = {"benchmark": benchmark, "what": ", ".join(where)}
    if isinstance(found, Mapping):
        if "ratio" in found:
            between = [found.get(f"ratio_{end}", found.get(end)) for end in ("low", "high")]
            spread = " to ".join(f"{end:.3f}" for end in between if isinstance(end, float))
            yield {**here, "value": f"{found['ratio']:.3f}", "quartiles": spread}
            return
        named = next((key for key in NAMED if key in found), None)  # a row of a table: its numbers stand under its name
        if named is not None:
            where = (*where, str(found[named]) if isinstance(found[named], str) else f"{named} = {found[named]}")
        for key, value in found.items():
            if key != named and not str(key).endswith(("_quartiles", "_ms")):
                spread = found.get(f"{key}_quartiles")
                for row in rows(benchmark, value, (*where, str(key))):
                    yield row if not spread else {**row, "quartiles": f"{spread[0]:.3f} to {spread[1]:.3f}"}
    elif isinstance(found, (list, tuple)):
        for index, value in enumerate(found):
            yield from rows(benchmark, value, where if isinstance(value, Mapping) else (*where, str(index)))
    elif isinstance(found, (int, float)) and not isinstance(found, bool):
        yield {**here, "value": f"{found:.4g}", "quartiles": ""}


def write(path: Path, results: Mapping[str, Any], conditions: Mapping[str, Any], failed: Mapping[str, str]) -> Path:
    lines = ["# Benchmarks", "", ", ".join(f"{key}: {value}" for key, value in conditions.items()), ""]
    lines += [f"{name} failed: {reason}" for name, reason in failed.items()]
    found = [row for name, result in results.items() for row in rows(name, result) if row["what"] != "threads"]
    lines += ["", markdown_table(found, COLUMNS), ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
