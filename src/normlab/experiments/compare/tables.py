"""A comparison as Markdown and CSV: what a repository keeps of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from normlab.experiments.compare.page import STARTS_CAPTION, more_rows, names_of, start_rows, summary_rows
from normlab.experiments.compare.result import Comparison
from normlab.experiments.compare.sentences import own_starts
from normlab.report.tables import csv_text, markdown_table
from normlab.results import flat

DROPPED = ("tokens/s", "peak MB")  # of the machine as it was


def markdown(result: Comparison) -> str:
    """For each setting: the answer, the one table, and what is and is not significant."""
    parts = list(result.notes)
    names = names_of(result.settings)
    for setting, name in zip(result.settings, names, strict=True):
        shape, floor = setting.setting, setting.setting.context_free_loss
        plain = f"{shape.depth} layers of width {shape.dim}"
        parts.append(f"## {name if name.startswith(plain) else plain}")
        parts.append(" ".join(setting.answer))
        parts += [own_starts(setting.own_starts)] if setting.own_starts else []
        if floor is not None:
            parts.append(f"Single tokens alone give {floor:.3f}.")
        parts.append(markdown_table(summary_rows(setting)))
        more = more_rows(setting)
        parts.append(markdown_table(more, [column for column in more[0] if column not in DROPPED]))
        if setting.starts and shape.recipe != "fair":
            parts += [STARTS_CAPTION, markdown_table(start_rows(setting))]
        parts.append("\n".join(f"- {text}" for text in setting.statements.values()))
    return "\n\n".join(parts) + "\n"


def runs_csv(runs: Sequence[object]) -> str:
    """Every run on a line: scheme, depth, rate, seed, loss, cost."""
    return csv_text([flat(run) for run in runs])
