"""A comparison as Markdown and CSV: what a repository keeps of a sweep."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from normlab.experiments.compare_page import summary_rows
from normlab.report.terminal import finite, show

DROPPED = ("seeds", "peak MB", "diverged", "parameters")


def markdown(result: dict[str, Any]) -> str:
    """For each setting: the answer, the one table, what is and is not significant, the claims."""
    parts = []
    for setting in result["settings"]:
        shape, floor = setting["setting"], setting["setting"]["context_free_loss"]
        parts.append(f"## {shape['depth']} layers of width {shape['dim']}")
        parts.append(" ".join(setting["answer"]))
        if floor is not None:
            parts.append(f"Single tokens alone give {floor:.3f}.")
        rows = summary_rows(setting)
        parts.append(table(rows, [name for name in rows[0] if name not in DROPPED]))
        parts.append("\n".join(f"- {text}" for text in setting["statements"].values()))
        if setting["claims"]:
            parts.append(table([claim_row(claim) for claim in setting["claims"]]))
    return "\n\n".join(parts) + "\n"


def claim_row(claim: Mapping[str, Any]) -> dict[str, Any]:
    reach = "" if claim["low"] is None else f" ({show(claim['low'])} to {show(claim['high'])})"
    reason = f"; {claim['reason']}" if claim["reason"] else ""
    return {
        "claim": claim["claim"], "verdict": claim["verdict"], "seeds": claim["n"],
        "mean (95 %)": "-" if claim["mean"] is None else f"{show(claim['mean'])}{reach}",
        "the number": f"{claim['number']}{reason}",
    }  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as a table of Markdown."""
    names = list(columns or rows[0])
    body = ["| " + " | ".join(show(row[name]).replace("|", "\\|") for name in names) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *body])


def cells_csv(result: dict[str, Any]) -> str:
    """Every run on a line: scheme, depth, rate, seed, loss, cost."""
    rows = [{k: v for k, v in row.items() if not isinstance(v, (dict, list))} for row in finite(result["cells"])]
    names = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
