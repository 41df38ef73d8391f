"""Before and after for people: one sentence, where the weights moved, what verdicts came and went; terminal and page."""

from __future__ import annotations

import html
import math
import textwrap
from typing import TYPE_CHECKING

from normlab.probes.judge.verdicts import listed
from normlab.probes.measure.table import plain
from normlab.probes.show import page as one
from normlab.probes.show import words
from normlab.probes.show.body import halves
from normlab.probes.show.text import WIDTH, body_lines, compare_text
from normlab.report import Page
from normlab.report.figures import Figure, bars, every_so_many, figure, marked, matrix
from normlab.report.tables import Column, fitted
from normlab.report.terminal import bar
from normlab.stats import t_reach

if TYPE_CHECKING:
    from normlab.probes.change import Change, Drift, VerdictChange

_KINDS = {"gained": "New", "lost": "Gone", "moved": "Changed"}


def headline(change: Change) -> str:
    """The loss, the layers that moved, the verdicts."""
    if all(each.moved == 0 for each in change.weights):
        return f"Nothing changed: all {len(change.weights)} parameters are the same."
    return f"{_loss_words(change)}; {_moved_words(change)}; {_verdict_words(change)}."


def _loss_words(change: Change) -> str:
    loss = change.loss
    if loss is None:
        return "The loss was not compared"
    way = "rose" if loss.change > 0 else "fell"
    error = "" if loss.error is None else f" ± {t_reach(loss.windows) * loss.error:.2g}"
    if loss.error is not None and not loss.certain:
        return f"The loss did not change for certain ({loss.before:.3f} to {loss.after:.3f}, {loss.change:+.3g}{error} nats)"
    return f"The loss {way} from {loss.before:.3f} to {loss.after:.3f} ({loss.change:+.3g}{error} nats)"


def _moved_words(change: Change) -> str:
    if not change.layers:
        far = max(change.weights, key=lambda each: each.drift)
        return f"{far.name} moved most, by {_percent(far.drift)} of its size"
    most = max(change.layers, key=lambda row: row.drift)
    if most.drift == 0:
        outside = max((each for each in change.weights if each.layer is None), key=lambda each: each.drift)
        return f"no layer changed, {outside.name} did, by {_percent(outside.drift)} of its size"
    inner = f"above all its {most.most} ({_percent(most.most_drift)})"
    if change.outstanding:
        which = "" if len(change.outstanding) == 1 else f"layer {most.layer} "
        return (
            f"{listed(change.outstanding)} moved most ({which}by {_percent(most.drift)} of its size, {inner}; "
            f"the median layer by {_percent(change.usual)})"
        )
    least = min(change.layers, key=lambda row: row.drift)
    return (
        f"all layers moved alike, from {_percent(least.drift)} (layer {least.layer}) to {_percent(most.drift)} of their size "
        f"(layer {most.layer}, {inner})"
    )


def _verdict_words(change: Change) -> str:
    parts = []
    for kind, word in (("gained", "new"), ("lost", "gone")):
        found = change.of(kind)
        if found:
            parts.append(f"{word}: " + ", ".join(words.verdict_name(each.verdict) for each in found))
    return "; ".join(parts) or "no verdict came or went"


def _percent(value: float) -> str:
    """0.31 -> 31 %; what began at zero has no percentage."""
    if not math.isfinite(value):
        return "more than all"
    return f"{100 * value:.3g} %"


# -- terminal ----------------------------------------------------------------------------------------------------------
def as_text(change: Change, *, width: int = WIDTH) -> str:
    blocks = [
        textwrap.wrap(change.headline, width),
        _bodies(change, width),
        _verdict_lines(change, width),
        _layer_table(change, width),
        _weight_table(change, width),
        compare_text([change.before, change.after], width=width).splitlines(),
        [piece for note in _notes(change) for piece in textwrap.wrap(f"note: {note}", width)],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _notes(change: Change) -> list[str]:
    return list(dict.fromkeys((*change.before.notes, *change.after.notes)))


def _bodies(change: Change, width: int) -> list[str]:
    lines = []
    for label, d in (("before", change.before), ("after", change.after)):
        lines += textwrap.wrap(f"{label}, {d.name}: {d.headline}", width)
        for half in halves(d):
            lines += [*([half.stack] if d.more else []), *body_lines(half, width)]
    return lines


def sentence(each: VerdictChange) -> str:
    """New, gone or changed, and what it says."""
    text = f"{_KINDS[each.kind]}: {words.SEVERITY[each.verdict.severity].lower()}, {words.verdict_name(each.verdict)}: "
    if each.earlier is None:
        return text + each.verdict.title
    return text + f"{each.verdict.title} (before: {each.earlier.title})"


def _verdict_lines(change: Change, width: int) -> list[str]:
    return [
        piece for each in change.verdicts for piece in textwrap.wrap(sentence(each), width, subsequent_indent="    ")
    ]


def _layer_table(change: Change, width: int) -> list[str]:
    if not change.layers:
        return []
    odd = set(change.outstanding)
    columns = [
        Column("layer", tuple(str(row.layer) for row in change.layers), 9),
        Column(" ", tuple("!" if row.layer in odd else " " for row in change.layers), 8, text=True),
        Column("moved by", tuple(_percent(row.drift) for row in change.layers), 7),
        Column("most: matrix", tuple(row.most for row in change.layers), 5, text=True),
        Column("by", tuple(_percent(row.most_drift) for row in change.layers), 6),
    ]
    lines, _ = fitted(columns, width=width)
    used, largest = max(map(len, lines)), max(row.drift for row in change.layers)
    room = min(20, width - used - 2)
    if room >= 6:
        drawn = ["", "", *(bar(row.drift, largest, width=room) for row in change.layers)]
        lines = [f"{line:<{used}}  {each}".rstrip() for line, each in zip(lines, drawn, strict=True)]
    return [*lines, *textwrap.wrap("moved by: |after - before| / |before| of all its parameters", width)]


def _weight_table(change: Change, width: int) -> list[str]:
    found = sorted((each for each in change.weights if each.moved), key=_order, reverse=True)[:8]
    if not found:
        return []
    columns = [
        Column("farthest", tuple(each.name for each in found), 9, text=True),
        Column("moved by", tuple(_percent(each.drift) for each in found), 8),
        Column("size now / before", tuple(f"{each.scale:.4g}" for each in found), 6),
        Column("cosine", tuple(f"{each.cosine:.4g}" for each in found), 7),
    ]
    return fitted(columns, width=width)[0]


def _order(each: Drift) -> float:
    return each.drift


# -- page --------------------------------------------------------------------------------------------------------------
def build(change: Change) -> Page:
    before, after = change.before, change.after
    page = Page(
        f"From {before.name} to {after.name}",
        subtitle=f"{len(after.layers)} layers, {after.placement}, on the same tokens",
    )
    page.heading("What changed")
    worse = change.loss is not None and change.loss.certain and change.loss.change > 0
    worse = worse or any(each.verdict.severity != "note" for each in change.of("gained"))
    page.text(change.headline, style="warn lead" if worse else "good lead")
    for each in change.verdicts:
        page.html(f"<p>{html.escape(sentence(each))}</p>")
    if change.layers:
        page.figure(
            layer_picture(change),
            caption="How far each layer moved: |after - before| / |before| of all its parameters.",
        )
        page.details(
            "How to read this",
            "A layer that moved by 100 % of its size is as far from where it was as it was from zero. New, gone and changed "
            "are the verdicts of the two diagnoses, which follow below with their pictures.",
        )
        page.figure(matrix_picture(change), caption="The same for every matrix.", height=120 + 22 * len(_rows(change)))
    page.heading("Before and after")
    for d in (before, after):
        one.answer(page, d, titled=True)
    page.heading("Verdicts")
    for d in (before, after):
        one.verdicts(page, d, titled=True)
    page.heading("Through the depth")
    one.plots(page, [*halves(before), *halves(after)])
    page.heading("Tables")
    rows = [{key: value for key, value in row.items() if key != "matrix"} for row in plain(change.weights)]
    page.table(
        rows, name="weights", caption="Every parameter: how far it moved.", columns=list(rows[0]) if rows else None
    )
    one.tables(page, [*halves(before), *halves(after)])
    return page


def layer_picture(change: Change) -> Figure:
    layers = [row.layer for row in change.layers]
    return figure(
        [bars(layers, [100 * row.drift for row in change.layers], "moved by")],
        x="layer",
        y="moved by (% of its size)",
        across={"tickvals": every_so_many(len(layers))},
        layout={"showlegend": False, "shapes": marked(dict.fromkeys(change.outstanding, "warn"), name="stands out")},
    )


def _rows(change: Change) -> list[str]:
    return list(dict.fromkeys(each.matrix for each in change.weights if each.layer is not None))


def matrix_picture(change: Change) -> Figure:
    """Layers across, matrices down, by how far each moved (in powers of ten: a few move much farther than most)."""
    names, depth = _rows(change), len(change.layers)
    place = {row.layer: i for i, row in enumerate(change.layers)}
    table: list[list[float | None]] = [[None] * depth for _ in names]
    for each in change.weights:
        if each.layer is not None and each.drift > 0 and math.isfinite(each.drift):
            table[names.index(each.matrix)][place[each.layer]] = math.log10(100 * each.drift)
    known = [value for row in table for value in row if value is not None]
    low, high = (math.floor(min(known)), math.ceil(max(known))) if known else (0, 1)
    steps = list(range(low, high + 1))
    bar = {"title": {"text": "moved by, %"}, "tickvals": steps, "ticktext": [f"{10.0**k:g}" for k in steps]}
    heat = matrix(table, x=list(place), y=names, colorbar=bar)
    down = {"type": "category", "autorange": "reversed", "automargin": True}
    across = {"tickvals": every_so_many(depth)}
    return figure([heat], x="layer", y="", across=across, down=down, layout={"showlegend": False})
