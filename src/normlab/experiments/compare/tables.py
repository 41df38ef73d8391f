"""A comparison as Markdown and CSV: what a repository keeps of a sweep."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from normlab.experiments.compare.page import claim_row, more_rows, names_of, summary_rows
from normlab.experiments.compare.result import Comparison
from normlab.report.terminal import show
from normlab.results import flat

DROPPED = ("tokens/s", "peak MB")  # of the machine as it was


def markdown(result: Comparison) -> str:
    """For each setting: the answer, the one table, what is and is not significant, the claims."""
    parts = list(result.notes)
    names = names_of(result.settings)
    for setting, name in zip(result.settings, names, strict=True):
        shape, floor = setting.setting, setting.setting.context_free_loss
        plain = f"{shape.depth} layers of width {shape.dim}"
        parts.append(f"## {name if name.startswith(plain) else plain}")
        parts.append(" ".join(setting.answer))
        if floor is not None:
            parts.append(f"Single tokens alone give {floor:.3f}.")
        parts.append(table(summary_rows(setting)))
        more = more_rows(setting)
        parts.append(table(more, [column for column in more[0] if column not in DROPPED]))
        parts.append("\n".join(f"- {text}" for text in setting.statements.values()))
        if setting.claims:
            parts.append(table([claim_row(claim) for claim in setting.claims]))
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> str:
    """Rows as a table of Markdown."""
    names = list(columns or rows[0])
    body = ["| " + " | ".join(show(row[name]).replace("|", "\\|") for name in names) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *body])


def runs_csv(runs: Sequence[object]) -> str:
    """Every run on a line: scheme, depth, rate, seed, loss, cost."""
    rows = [flat(run) for run in runs]
    names = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
