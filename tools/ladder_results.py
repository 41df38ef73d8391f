"""Write the ladder's table and sentences into docs/results/README.md, between its marks, and its runs beside it.

    normlab compare --preset ladder-small --out RUNS/ladder-small
    python tools/ladder_results.py RUNS/ladder-small [RUNS/ladder-small-control] [RUNS/ladder-small-muon]
    python tools/ladder_results.py --beside RUNS/ladder-deep

A folder of one scheme more is a control: the leaders are set against it, by the same seeds. One of another optimizer is
a table of its own, set against the first by the same seeds.

`--beside`: a rung of another size, between marks of its own name; what stands elsewhere on the page stays.

Sentences are numbers with what stands in the way of comparing them; no order of schemes is printed.
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools.site

from tools.site import ladder

from normlab.experiments.compare.experiment import EXPERIMENT, TUNING
from normlab.experiments.compare.result import Comparison, SchemeRow, SettingResult
from normlab.experiments.runs.records import read_run
from normlab.files import write_json, write_text
from normlab.report.tables import csv_text
from normlab.results import plain
from normlab.schemes.names import label
from normlab.stats import paired

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
BEGIN, END = "<!-- ladder -->\n", "<!-- end of ladder -->"
SHORT, SHORT_END = "<!-- ladder in short -->\n", "<!-- end of short -->"
HEAD = (
    "scheme", "rate", "held-out loss (nats)", "bits per byte", "over seeds", "against pre_norm (95 %)",
    "training loss", "step time", "loss in pre_norm's time, fewer sequences", "saved MB", "gap through the decay",
)  # fmt: skip


def table(setting: SettingResult) -> list[str]:
    rows = sorted(setting.schemes, key=lambda row: (row.scheme != setting.baseline, row.scheme))
    lines = [HEAD, ["---"] * len(HEAD), *(cells(row, base=row.scheme == setting.baseline) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def cells(row: SchemeRow, *, base: bool) -> list[str]:
    losses = [loss for loss in row.losses.values() if loss is not None]
    gap, decay = row.difference, row.decay_gap.test
    return [
        f"`{row.scheme}`", f"{row.lr:g}", number(row.mean, ".3f"),
        number(None if row.mean is None else row.mean / math.log(2), ".3f"),
        number(statistics.stdev(losses) if len(losses) > 1 else None, ".3f"),
        "-" if base else f"{number(gap.mean, '+.3f')} ({number(gap.low, '+.3f')} to {number(gap.high, '+.3f')})",
        number(row.train, ".3f"),
        number(row.cost.time if row.cost else None, ".2f"),
        number(_last(row) if base else row.loss_at_equal_time, ".3f"),
        number(None if row.activation_bytes is None else row.activation_bytes / 1e6, ".1f"),
        "-" if base else f"{number(decay.mean, '+.3f')} ({number(decay.low, '+.3f')} to {number(decay.high, '+.3f')})",
    ]  # fmt: skip


def _last(row: SchemeRow) -> float:
    """By the sequences on which curves are measured, fewer than those of the last loss."""
    return statistics.fmean(curve.loss[-1] for curve in row.curve.values())


def number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def section(found: Comparison, folder: Path) -> list[str]:
    (setting,) = found.settings
    ends = at_an_end(setting, folder)
    said = ladder.of(setting, at_end=ends)
    known = [f"**{setting.setting.optimizer}, {said.tokens:,} tokens.** {said.answer}", "", *table(setting), ""]
    known += [note.replace(str(folder), folder.name) for note in found.notes]
    if ends:
        named = ", ".join(f"`{row.scheme}` ({row.lr:g})" for row in setting.schemes if row.scheme in ends)
        known += [f"The best rate was at an end of those tried for {named}: a better one may lie beyond."]
    return [*known, ""]


def at_an_end(setting: SettingResult, folder: Path) -> set[str]:
    """Schemes whose best rate is the smallest or the largest that was tried."""
    tried: dict[str, set[float]] = {}
    for place in (folder / TUNING).glob("*/config.yaml"):
        if (run := read_run(place.parent)) is not None:
            tried.setdefault(label(run.config.model.scheme), set()).add(run.lr)
    return {
        row.scheme for row in setting.schemes if (rates := tried.get(row.scheme)) and row.lr in (min(rates), max(rates))
    }


def other_optimizer(found: SettingResult, first: SettingResult) -> list[str]:
    """Each scheme with another optimizer, minus itself with the first one's."""
    rows = {row.scheme: row for row in first.schemes}
    said = [f"`{row.scheme}` {gap(row, rows[row.scheme])}" for row in found.schemes if row.scheme in rows]
    return [
        f"{found.setting.optimizer} minus {first.setting.optimizer}, each at its best rate: {'; '.join(said)} nats "
        f"({ladder.KIND}).",
        "",
    ]


def control(found: SettingResult, first: SettingResult) -> list[str]:
    """A scheme that was added later, beside the baseline."""
    (own,) = found.schemes
    rows = {row.scheme: row for row in first.schemes}
    said = [f"`{own.scheme}` minus `{first.baseline}` {gap(own, rows[first.baseline])}"]
    return [
        f"A control that was added after the others were seen, at its own best rate ({own.lr:g}): {'; '.join(said)} nats "
        f"({ladder.KIND}).",
        "",
    ]


def gap(one: SchemeRow, other: SchemeRow) -> str:
    pairs = [(loss, other.losses.get(seed)) for seed, loss in one.losses.items()]
    test = paired([a - b for a, b in pairs if a is not None and b is not None])
    return f"{number(test.mean, '+.3f')} ({number(test.low, '+.3f')} to {number(test.high, '+.3f')}, n = {test.n})"


def main(folders: list[str]) -> None:
    lines, short = list[str](), list[str]()
    first: SettingResult | None = None
    for name in folders:
        found = EXPERIMENT.analyse([Path(name)])
        setting = found.settings[0]
        if first is None:
            lines += section(found, Path(name))
        elif setting.setting.optimizer != first.setting.optimizer:
            lines += [*section(found, Path(name)), *other_optimizer(setting, first)]
        else:
            lines += control(setting, first)
        if len(setting.schemes) > 1:
            short.append(in_short(setting, Path(name)))
        first = first or setting
        runs = [row for row in map(plain, found.cells) if isinstance(row, dict)]
        target = RESULTS / Path(name).name
        target.mkdir(exist_ok=True)
        if target == ladder.FILE.parent:
            ladder.store(ladder.of(setting, at_end=at_an_end(setting, Path(name))))
        write_text(target / "cells.csv", csv_text(runs))
    page = RESULTS / "README.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    write_text(page, _shortened(before, short) + BEGIN + "\n".join(lines).rstrip() + "\n" + END + after)


def beside(folder: Path) -> None:
    found = EXPERIMENT.analyse([folder])
    page = RESULTS / "README.md"
    text = page.read_text(encoding="utf-8")
    for mark, lines in (
        (folder.name, section(found, folder)),
        (f"{folder.name} in short", [in_short(found.settings[0], folder)]),
    ):
        before, rest = text.split(f"<!-- {mark} -->\n")
        end = f"<!-- end of {mark} -->"
        text = before + f"<!-- {mark} -->\n" + "\n".join(lines).rstrip() + "\n" + rest[rest.index(end) :]
    write_text(page, text)
    target = RESULTS / folder.name
    target.mkdir(exist_ok=True)
    (setting,) = found.settings
    write_json(target / "rows.json", asdict(ladder.of(setting, at_end=at_an_end(setting, folder))))
    runs = [row for row in map(plain, found.cells) if isinstance(row, dict)]
    write_text(target / "cells.csv", csv_text(runs))


def in_short(setting: SettingResult, folder: Path) -> str:
    """One line of the page's summary."""
    said = ladder.of(setting, at_end=at_an_end(setting, folder))
    return f"- {setting.setting.optimizer}, {said.short}"


def _shortened(text: str, lines: list[str]) -> str:
    before, rest = text.split(SHORT)
    return before + SHORT + "\n".join(lines) + "\n" + rest[rest.index(SHORT_END) :]


if __name__ == "__main__":
    if sys.argv[1] == "--beside":
        beside(Path(sys.argv[2]))
    else:
        main(sys.argv[1:])
