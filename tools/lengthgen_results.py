"""Shorten `lengthgen.json` files to what docs/results/lengthgen keeps: every seed of the main measures, the verdicts.

    python tools/lengthgen_results.py docs/results/lengthgen NAME=RUN_FOLDER ...

Also prints the raw weights' medians and verdicts as tables of Markdown.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

SETTING = ("positions", "fix", "dim", "head_dim", "lr", "scheme")
KEPT = ("tv", "loss", "auc", "illegal_mass", "attention_entropy", "attention_rms", "gap")


def shorten(full: dict[str, Any]) -> dict[str, Any]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in full["rows"]:
        groups.setdefault(tuple(row[k] for k in (*SETTING, "weights", "length")), []).append(row)
    rows = []
    for key, members in groups.items():
        members.sort(key=lambda row: row["seed"])
        line = dict(zip((*SETTING, "weights", "length"), key, strict=True))
        line["diverged"] = sum(row["status"] == "diverged" for row in members)
        kept = KEPT if line["weights"] == "raw" else KEPT[:2]
        rows.append(line | {m: [_short(r.get(m)) for r in members] for m in kept if members[0].get(m) is not None})
    config = {k: v for k, v in full["config"].items() if v not in (None, [], ())}
    verdicts = [{k: _short(v) for k, v in line.items()} for line in full["against_first"] if line["weights"] == "raw"]
    return {"config": config, "rows": rows, "against_first": verdicts, "stability": full["stability"]}


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def markdown(short: dict[str, Any]) -> str:
    metric = "tv" if "tv" in short["rows"][0] else "loss"
    lengths = sorted({row["length"] for row in short["rows"]})
    verdicts = {_key(v): v["verdict"] for v in short["against_first"] if v["weights"] == "raw"}
    lines: dict[tuple[Any, ...], dict[int, str]] = {}
    for row in short["rows"]:
        if row["weights"] == "raw":
            values = [v for v in row[metric] if v is not None]
            mark = {"better": " +", "worse": " -"}.get(verdicts.get(_key(row), ""), "")
            text = f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f}){mark}"
            lines.setdefault(tuple(row[k] for k in SETTING), {})[row["length"]] = text
    varied = [i for i, k in enumerate(SETTING) if len({key[i] for key in lines}) > 1 or k == "scheme"]
    head = [*(SETTING[i] for i in varied), *map(str, lengths)]
    body = [[*(str(key[i]) for i in varied), *(cells[n] for n in lengths)] for key, cells in lines.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(_short(row[k]) for k in (*SETTING, "length"))


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for pair in arguments[1:]:
        name, _, run = pair.partition("=")
        short = shorten(json.loads((Path(run) / "lengthgen.json").read_text(encoding="utf-8")))
        body = ",\n".join(f'  "{part}": {_lines(value)}' for part, value in short.items())
        (folder / f"{name}.json").write_text("{\n" + body + "\n}\n", encoding="utf-8")
        print(f"\n{name}\n\n{markdown(short)}")


def _lines(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join("    " + json.dumps(row) for row in value) + "\n  ]"


if __name__ == "__main__":
    main(sys.argv[1:])
