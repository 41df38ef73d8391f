"""The report of a length generalization experiment: CSV, HTML, terminal."""

from __future__ import annotations

from collections.abc import Sequence

from normlab.experiments.lengthgen.result import ARM, METRICS, Arm, LengthGeneralization, ScoreRow, SummaryRow
from normlab.report import Page, console, table
from normlab.report.colours import scheme_colours
from normlab.report.figures import Figure, Trace, band, figure, line, theory, ticks, vertical
from normlab.report.tables import csv_text
from normlab.results import Plain, as_row, page_of

SHOWN = "raw"
CURVES = {
    "tv": "Total variation to the exact next-token distribution",
    "auc": "Legality AUC (mean over prefixes)",
    "auc_sequence": "Sequence AUC: members against the same with one illegal token",
    "illegal_mass": "Probability on illegal tokens",
    "attention_entropy": "Attention entropy / log(length)",
    "attention_rms": "RMS of the attention output",
}

AXES = {"auc": "AUC", "auc_sequence": "sequence AUC", "tv": "total variation", "illegal_mass": "probability",
        "attention_entropy": "entropy / log(length)", "attention_rms": "rms"}  # fmt: skip


def to_csv(rows: Sequence[ScoreRow]) -> str:
    return csv_text(_lines(rows), [*ARM, "seed", "weights", "length", "status", *METRICS])


def _lines(rows: Sequence[object]) -> list[dict[str, Plain]]:
    return [as_row(row) for row in rows]


def _telling(rows: Sequence[object]) -> list[dict[str, Plain]]:
    """The scheme first, and of the settings only those that differ."""
    lines = _lines(rows)
    same = {key for key in ARM if key != "scheme" and len({str(line.get(key)) for line in lines}) == 1}
    first = [key for key in (*(lines[0] if lines else ()),) if key not in same]
    order = sorted(first, key=lambda key: key != "scheme")
    return [{key: line.get(key) for key in order} for line in lines]


@page_of.register
def build(result: LengthGeneralization) -> Page:
    config, summary = result.config, result.summary
    made = Page(
        f"Length generalization: {config.task.name.replace('_', ' ')}",
        subtitle=f"trained to length {config.train_length}, {config.steps} steps, {config.seeds} seeds, "
        f"{config.preset.replace('_', '-')} model",
    )
    made.heading("Answer")
    for sentence in sentences(result):
        made.text(sentence, style="lead")
    for note in result.notes:
        made.text(note, style="warn")
    diverged = sum(run.status == "diverged" for run in result.runs.values())
    if diverged:
        made.text(f"{diverged} of {len(result.runs)} runs diverged; their rows score their last weights.", style="warn")
    shown = {metric: title for metric, title in CURVES.items() if any(metric in row.metrics for row in summary)}
    for place, (metric, title) in enumerate(shown.items()):
        if place:
            made.heading(title, short=AXES[metric])
        made.figure(_figure(result, metric), caption=f"{title}; dashed: the training length.", height=420)
        if place == 0:
            made.details(
                "How to read this",
                "Lines are medians over seeds, bands run from the smallest to the largest seed. The weights are raw; EMA "
                "and BEMA are in the tables.",
                "Left of the dashed line the model has seen such lengths; right of it it generalises or does not. Total "
                "variation is 0 where the exact law is met and 1 where nothing of it is.",
            )
    if result.closed_form:
        made.text(
            "Dotted: the closed forms of the exact construction without a norm (gap c/s) and with one on the attention "
            "output, both brought to the first scheme's total variation at the training length.",
            style="note",
        )
    if result.against_first:
        first = result.against_first[0]
        made.heading(f"Against {first.against}")
        made.table(
            _telling(result.against_first),
            name="lengthgen-against-first",
            caption=f"{first.metric} minus that of {first.against} with the same seed: the median and an interval "
            "of order statistics that holds the population's median with the stated probability. Better or worse "
            "where the interval leaves out zero and that probability is 0.93 or more; many lines, so expect a few by "
            "chance.",
        )
    made.heading("Raw, EMA and BEMA weights")
    columns = [*ARM, "weights", "length", "seeds", "diverged", "tv", "tv_low", "tv_high", "auc",
               "auc_pooled", "undefined", "illegal_mass", "loss"]  # fmt: skip
    lines = _telling(summary)
    kept = (
        [c for c in lines[0] if c in columns and any(line.get(c) is not None for line in lines)] if lines else columns
    )
    made.table(lines, name="lengthgen-summary", columns=kept, caption="Medians over seeds, with the range of tv.")
    made.heading("How calmly they trained")
    made.table(_telling(result.stability), name="lengthgen-stability", caption="From the logs of all seeds.")
    made.heading("How it was made")
    made.code(result.command)
    made.heading("Every seed")
    made.table(_telling(result.rows), name="lengthgen-rows", caption="One row for each run, weights and length.")
    return made


def sentences(result: LengthGeneralization) -> list[str]:
    """How the arms do at the longest length, the best first, beside the length that they were trained to."""
    metric = next(
        (name for name in ("tv", "loss", "illegal_mass") if any(name in row.metrics for row in result.summary)), ""
    )
    found = {name: points for name, points in _curves(result, metric).items() if points} if metric else {}
    if not found:
        return []
    said = {"tv": "total variation to the exact law", "loss": "loss", "illegal_mass": "probability on illegal tokens"}[
        metric
    ]
    longest = max(point.length for points in found.values() for point in points)
    ends = {name: next((p for p in points if p.length == longest), points[-1]) for name, points in found.items()}
    order = sorted(ends, key=lambda name: ends[name].metrics[metric].median)
    words = [
        f"{name} {ends[name].metrics[metric].median:.3g} "
        f"({ends[name].metrics[metric].low:.3g} to {ends[name].metrics[metric].high:.3g})"
        for name in (order if len(order) <= 4 else [*order[:2], *order[-2:]])
    ]
    which = "" if len(order) <= 4 else f", the two best and the two worst of {len(order)}"
    return [
        f"At length {longest}, trained to {result.config.train_length}, the {said} is {', '.join(words)}{which}: medians "
        "over seeds, with their range."
    ]


def _apart(lengths: Sequence[int]) -> list[int]:
    """Of lengths on a logarithmic axis, those whose numbers do not touch."""
    kept: list[int] = []
    for length in lengths:
        if not kept or length >= 1.6 * kept[-1]:
            kept.append(length)
    return kept


def _curves(result: LengthGeneralization, metric: str) -> dict[str, list[SummaryRow]]:
    """What the legend says -> the points of the line: an arm's scheme, and what varies."""
    arms = {row.arm for row in result.summary}
    varies = [key for key in ("dim", "head_dim", "lr") if len({getattr(arm, key) for arm in arms}) > 1]
    lines: dict[Arm, list[SummaryRow]] = {}
    for row in result.summary:
        if row.weights == SHOWN and metric in row.metrics:
            lines.setdefault(row.arm, []).append(row)

    def name(arm: Arm) -> str:
        words = [arm.scheme, arm.fix, arm.positions, *(f"{key} {getattr(arm, key):g}" for key in varies)]
        return " ".join(word for word in words if word not in ("none", "nope"))

    return {name(arm): points for arm, points in lines.items()}


def _figure(result: LengthGeneralization, metric: str) -> Figure:
    traces: list[Trace] = []
    curves = _curves(result, metric)
    colours = scheme_colours(curves)
    for label, points in curves.items():
        spreads, x = [p.metrics[metric] for p in points], [p.length for p in points]
        traces.append(band(x, [s.low for s in spreads], [s.high for s in spreads], colours[label]))
        traces.append(line(x, [s.median for s in spreads], label, colours[label], mode="lines+markers"))
    if metric == "tv" and result.closed_form:
        lengths = [point.length for point in result.closed_form]
        traces.append(theory(lengths, [point.tv for point in result.closed_form], "closed form, no norm"))
        normed = [point.tv_with_norm for point in result.closed_form]
        traces.append(theory(lengths, normed, "closed form, norm", dash="dash"))
    lengths = sorted({p.length for points in curves.values() for p in points})
    layout = {"shapes": [vertical(result.config.train_length)]}
    return figure(traces, x="length (tokens)", y=AXES[metric], log_x=True, across=ticks(_apart(lengths)), layout=layout)


def show(result: LengthGeneralization) -> None:
    """Raw weights and the verdicts, in a terminal."""
    screen = console()
    for note in result.notes:
        screen.print(note, style="yellow", markup=False)
    arms = {row.arm for row in result.summary}
    varies = [key for key in ARM if key != "scheme" and len({getattr(arm, key) for arm in arms}) > 1]
    names = [*varies, "scheme", "length", "tv", "tv_low", "tv_high", "auc", "illegal_mass", "loss", "diverged"]
    lines = _lines([row for row in result.summary if row.weights == SHOWN])
    kept = [name for name in names if any(line.get(name) is not None for line in lines)]
    title = f"Raw weights, median over {result.config.seeds} seeds with the range of tv"
    screen.print(table(lines, columns=kept, title=title))
    verdicts = [line for line in result.against_first if line.weights == SHOWN]
    if verdicts:
        columns = [*varies, "scheme", "length", "difference", "low", "high", "verdict"]
        title = f"{verdicts[0].metric} minus that of {verdicts[0].against}, same seeds: median and its interval"
        screen.print(table(_lines(verdicts), columns=columns, title=title))
