"""One HTML page for one or several models: verdicts, plots with theory beside them, the layers, how it was measured."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlab.probes.measure.table import flat, plain
from normlab.probes.show import figures
from normlab.probes.show.text import identity
from normlab.report import Page
from normlab.report.page import script_json

if TYPE_CHECKING:
    from normlab.probes.diagnosis import Diagnosis

STYLE = {"bad": "bad", "warn": "warn", "note": "note-box"}
WORD = {"bad": "Fault", "warn": "Warning", "note": "Note"}


def build(diagnoses: Sequence[Diagnosis]) -> Page:
    names = ", ".join(d.name for d in diagnoses)
    first = diagnoses[0]
    subtitle = (
        f"{len(first.layers)} layers, {first.placement}, {first.how.parameters / 1e6:.4g}M parameters"
        if len(diagnoses) == 1
        else f"{len(diagnoses)} models on the same text"
    )
    page = Page(f"Diagnosis of {names}", subtitle=subtitle)
    page.heading("Verdicts")
    for d in diagnoses:
        _verdicts(page, d, titled=len(diagnoses) > 1)
    if len(diagnoses) > 1:
        page.heading("Side by side")
        rows = [
            {"model": d.name, "layers": len(d.layers), "placement": d.placement, **plain(d.summary)} for d in diagnoses
        ]
        page.table(rows, name="summary", caption="One line per model.")
    page.heading("Through the depth")
    _plots(page, diagnoses)
    page.heading("Layers")
    _picker(page, diagnoses)
    for d in diagnoses:
        page.table(
            [flat(row) for row in d.layers],
            name=f"layers-{_file(d.name)}",
            caption=f"{d.name}: every number of every layer",
        )
    page.heading("How it was measured")
    for d in diagnoses:
        _method(page, d)
    return page


def _verdicts(page: Page, d: Diagnosis, *, titled: bool) -> None:
    if titled:
        page.html(f"<h3>{html.escape(d.name)}</h3>")
    page.text(d.headline, style="good" if d.worst in (None, "note") else "")
    for v in d.verdicts:
        rows = "".join(
            f"<dt>{label}</dt><dd>{html.escape(text)}</dd>"
            for label, text in (("Normal", v.normal), ("Why it matters", v.why), ("What to try", v.advice))
        )
        page.html(
            f'<section class="{STYLE[v.severity]} verdict" data-verdict="{html.escape(v.id)}">'
            f"<strong>{WORD[v.severity]}: {html.escape(v.id.replace('_', ' '))}.</strong> {html.escape(v.title)}"
            f"<dl>{rows}</dl></section>"
        )
    for note in d.notes:
        page.text(f"Note: {note}", style="note")


# Label and value of each line, what is on the axis, logarithmic, caption.
LINES: tuple[tuple[dict[str, figures.Value], str, bool, str], ...] = (
    (
        {"attention": lambda row: row.attention_ratio, "FFN": lambda row: row.ffn_ratio},
        "||f|| / ||h||",
        True,
        "What each branch adds, relative to the stream it is added to.",
    ),
    (
        {"parameters": lambda row: row.gradient_norm, "stream": lambda row: row.stream_gradient},
        "gradient norm",
        True,
        "Gradients of the loss, before clipping: of a layer's parameters, and of the stream that enters it.",
    ),
    (
        {
            "entropy / log n": lambda row: row.entropy,
            "largest weight": lambda row: row.max_weight,
            "sink mass": lambda row: row.sink_mass,
        },
        "attention",
        False,
        "Attention: entropy 1 is uniform; sink mass is the share that goes to one key.",
    ),
    (
        {
            "cosine between streams": lambda row: row.homogenisation,
            "gain of the mixings so far": lambda row: row.composite_gain,
        },
        "parallel streams",
        False,
        "Several streams: 1 as cosine means that they carry one vector; the gain is the largest row or column sum of the "
        "product of all mixings so far (1 if doubly stochastic).",
    ),
)


def growth_sentence(d: Diagnosis) -> str:
    """The fitted exponents beside those that theory gives."""
    measured, predicted = d.summary.growth_exponent, d.theory.growth_exponent
    theory = "theory is silent on this placement" if predicted is None else f"random weights predict {predicted:.3g}"
    text = f"{d.name}: the median token's norm grows as layer^{_number(measured)} ({theory})"
    if d.lengths and len(d.lengths) > 1:
        weight, output = d.summary.max_weight_exponent, d.summary.output_exponent
        text += (
            f"; the largest attention weight falls as length^{_number(weight)} (-1 if attention only averages) and the "
            f"output of attention goes as length^{_number(output)} (-0.5 if it averages independent values)"
        )
    return text + "."


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.2f}"


def _plots(page: Page, diagnoses: Sequence[Diagnosis]) -> None:
    for d in diagnoses:
        page.text(growth_sentence(d))
    drawn: list[tuple[Any, str]] = [
        (figures.norms(diagnoses), "Length of the residual stream. Where mean and median part, a few tokens are huge."),
        *((figures.per_layer(diagnoses, lines, y, log=log), caption) for lines, y, log, caption in LINES),
        (figures.tokens(diagnoses), "How alike the tokens of a window are; dashed: the ideal dynamics on the sphere."),
        (figures.lengths(diagnoses), "Attention against length."),
        (figures.skips(diagnoses), "Without one layer: the change of the loss. This is the causal test of the others."),
        *((figures.mixing(d), f"{d.name}: depth mixing, h_l = sum of M[l, i] v_i.") for d in diagnoses),
        *((figures.angles(d), f"{d.name}: angle over runs of layers, at the last token.") for d in diagnoses),
    ]
    for figure, caption in drawn:
        if figure is not None:
            page.figure(figure, caption=caption)
    for d in diagnoses:
        if d.causal:
            found = d.causal.correlation.items()
            rows = [{"metric": name, "rank correlation with the causal effect": value} for name, value in found]
            page.table(rows, name=f"correlation-{_file(d.name)}", caption=_correlation_caption(d))


def _correlation_caption(d: Diagnosis) -> str:
    if d.causal and d.causal.informative:
        return f"{d.name}: how well each cheap metric ranks layers by what skipping them costs (1 = perfectly)"
    return f"{d.name}: the model does not do well on this text, so these say nothing about what layers are worth"


def _picker(page: Page, diagnoses: Sequence[Diagnosis]) -> None:
    """A select per report, so that it works with a keyboard and on a phone."""
    options = "".join(
        f'<option value="{m}:{i}">{html.escape(d.name)}, layer {i}</option>'
        for m, d in enumerate(diagnoses)
        for i in range(len(d.layers))
    )
    data = script_json([[_pretty(row) for row in map(flat, d.layers)] for d in diagnoses])
    page.html(
        '<p><label for="layer-pick">One layer: </label>'
        f'<select id="layer-pick">{options}</select></p><dl id="layer-card" class="card" aria-live="polite"></dl>'
        f'<script type="application/json" id="layer-data">{data}</script>{_PICKER}'
    )


def _pretty(row: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", " "): value for key, value in row.items()}


_PICKER = (Path(__file__).parent / "data" / "picker.html").read_text(encoding="utf-8")


def _method(page: Page, d: Diagnosis) -> None:
    rows = [{"what": key, "value": str(value)} for key, value in plain(d.how).items()]
    page.table(rows, name=f"method-{_file(d.name)}", caption=d.name)
    where = "inferred from data" if d.inferred else "from the table of architectures"
    page.text(
        f"Hooks on the model's own {d.architecture} modules ({where}). That the stream behind a layer is the stream in "
        f"front plus its contributions is checked on data in every layer: {identity(d)} (of the layer's change). "
        "Numbers are means over tokens, reduced while streaming; nothing was cached over depth."
    )


def _file(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)
