"""One HTML page for one or several models: the answer, a picture of the body, verdicts, plots, and tables last."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from normlab.probes.measure.table import flat, plain
from normlab.probes.show import body, figures, words
from normlab.probes.show.normal import gallery
from normlab.probes.show.text import identity, loss_sentence
from normlab.report import Page
from normlab.report.figures import Figure
from normlab.report.page import script_json
from normlab.report.tables import all_columns

if TYPE_CHECKING:
    from normlab.probes.diagnosis import Diagnosis

STYLE = {"bad": "bad", "warn": "warn", "note": "note-box"}


def build(diagnoses: Sequence[Diagnosis]) -> Page:
    names = ", ".join(d.name for d in diagnoses)
    first = diagnoses[0]
    layers = " + ".join(f"{len(half.layers)} {half.stack}".strip() for half in first.stacks)
    subtitle = (
        f"{layers} layers, {first.placement}, {words.parameters(first.how.parameters)}"
        if len(diagnoses) == 1
        else f"{len(diagnoses)} models on the same text"
    )
    page = Page(f"Diagnosis of {names}", subtitle=subtitle)
    page.heading("Answer")
    for d in diagnoses:
        answer(page, d, titled=len(diagnoses) > 1)
    if any(d.verdicts or d.notes for d in diagnoses):
        page.heading("Verdicts")
    for d in diagnoses:
        verdicts(page, d, titled=len(diagnoses) > 1)
    stacks = [half for d in diagnoses for half in body.halves(d)]
    page.heading("Through the depth")
    plots(page, stacks)
    page.heading("Layers")
    _picker(page, stacks)
    page.heading("Tables")
    tables(page, stacks)
    page.heading("How it was measured")
    for d in diagnoses:
        _method(page, d)
    return page


def answer(page: Page, d: Diagnosis, *, titled: bool) -> None:
    """The sentence, the body with its flagged layers, the loss."""
    if titled:
        page.html(f"<h3>{html.escape(d.name)}</h3>")
    page.text(d.headline, style={"bad": "bad lead", "warn": "warn lead"}.get(d.worst or "", "good lead"))
    for half in body.halves(d):
        drawn, height = body.picture(half)
        caption = (
            f"The body of {half.name}: each column is a layer, each row a subject of which something is said. "
            "In: the embedding; out: final norm, head and loss."
        )
        page.figure(drawn, caption=caption, height=height, label=f"{caption} {half.headline}")
    if sentence := loss_sentence(d):
        page.text(sentence[:1].upper() + sentence[1:])


def verdicts(page: Page, d: Diagnosis, *, titled: bool) -> None:
    if titled and (d.verdicts or d.notes):
        page.html(f"<h3>{html.escape(d.name)}</h3>")
    for v in d.verdicts:
        rows = "".join(
            f"<dt>{label}</dt><dd>{html.escape(text)}</dd>"
            for label, text in (("Normal", v.normal), ("Why it matters", v.why), ("What to try", v.advice))
        )
        page.html(
            f'<section class="{STYLE[v.severity]} verdict" data-verdict="{html.escape(v.id)}">'
            f"<strong>{words.SEVERITY[v.severity]}: {html.escape(words.verdict_name(v))}.</strong> {html.escape(v.title)}"
            f"<dl>{rows}</dl></section>"
        )
    for note in d.notes:
        page.text(f"Note: {note}", style="note")


def growth_sentence(d: Diagnosis) -> str:
    """The fitted exponents beside those that theory gives."""
    measured, predicted = d.summary.growth_exponent, d.theory.growth_exponent
    theory = "theory is silent on this placement" if predicted is None else f"random weights predict {predicted:.3g}"
    text = f"{d.name}: the median token's norm goes as layer^{_number(measured)} ({theory})"
    if d.lengths and len(d.lengths) > 1:
        weight, output = d.summary.max_weight_exponent, d.summary.output_exponent
        text += (
            f"; the largest attention weight goes as length^{_number(weight)} (-1 if attention only averages) and the "
            f"output of attention goes as length^{_number(output)} (-0.5 if it averages independent values)"
        )
    return text + "."


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.2f}"


def plots(page: Page, diagnoses: Sequence[Diagnosis]) -> None:
    """Pictures over depth: flagged layers are marked in each, healthy models lie behind as a band."""
    for d in diagnoses:
        page.text(growth_sentence(d))
    if len(diagnoses) == 1 and gallery().models:
        page.text(
            "Bands: smallest to largest of healthy trained models with norms in like places, at the same share of the depth. "
            "Most of them are small, so lying outside is not a fault by itself.",
            style="note",
        )
    over_depth = {
        "What each branch adds, relative to the stream it is added to (median token).": figures.branch_plot(diagnoses),
        "Gradients of the loss, before clipping: of parameters, and of the stream that enters a layer.": figures.GRADIENTS,
        "Attention: entropy 1 is uniform; the share on one key is what a sink takes.": figures.ATTENTION,
        "Several streams: 1 as cosine means that they carry one vector; the gain is the largest row or column sum of the "
        "product of all mixings so far (1 if doubly stochastic).": figures.STREAMS,
    }
    drawn: list[tuple[Figure | None, str]] = [
        (figures.norms(diagnoses), "Length of the residual stream. Where mean and median part, a few tokens are huge."),
        *((figures.per_layer(diagnoses, plot), caption) for caption, plot in over_depth.items()),
        (figures.tokens(diagnoses), "How alike the tokens of a window are; dotted: the ideal dynamics on the sphere."),
        (figures.lengths(diagnoses), "Attention against length."),
        (figures.skips(diagnoses), _skip_caption(diagnoses)),
        *((figures.mixing(d), f"{d.name}: depth mixing, h_l = sum of M[l, i] v_i.") for d in diagnoses),
        *((figures.angles(d), f"{d.name}: angle over runs of layers, at the last token.") for d in diagnoses),
    ]
    for figure, caption in drawn:
        if figure is not None:
            page.figure(figure, caption=caption, height=420)


def _skip_caption(diagnoses: Sequence[Diagnosis]) -> str:
    counts = sorted({d.causal.batches for d in diagnoses if d.causal})
    bars = f" Bars: 95 % intervals over {' or '.join(map(str, counts))} batches." if counts and counts[-1] > 1 else ""
    return f"Without one layer: the change of the loss. This is the causal test of the others.{bars}"


def tables(page: Page, diagnoses: Sequence[Diagnosis]) -> None:
    if len(diagnoses) > 1:
        rows = [
            {"model": d.name, "layers": len(d.layers), "placement": d.placement,
             **{key.replace("_", " "): value for key, value in plain(d.summary).items()}}
            for d in diagnoses
        ]  # fmt: skip
        page.table(rows, name="summary", caption="Side by side: one line per model.")
    for d in diagnoses:
        if d.causal:
            name = "rank correlation with the causal effect"
            ranked = [{"metric": words.column(key), name: value} for key, value in d.causal.correlation.items()]
            page.table(ranked, name=f"correlation-{file_name(d.name)}", caption=_correlation_caption(d))
    for d in diagnoses:
        rows = [{words.column(key): value for key, value in row.items()} for row in map(flat, d.layers)]
        caption = f"{d.name}: every number of every layer"
        page.table(rows, name=f"layers-{file_name(d.name)}", caption=caption, columns=all_columns(rows))


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


def _pretty(row: dict[str, object]) -> dict[str, object]:
    return {words.column(key): value for key, value in row.items()}


_PICKER = (Path(__file__).parent / "data" / "picker.html").read_text(encoding="utf-8")


def _method(page: Page, d: Diagnosis) -> None:
    stages = ", ".join(f"{name} {seconds:g} s" for name, seconds in d.how.stages.items())
    rows = [{"what": key, "value": stages if key == "stages" else str(value)} for key, value in plain(d.how).items()]
    page.table(rows, name=f"method-{file_name(d.name)}", caption=d.name)
    where = "inferred from data" if d.inferred else "from the table of architectures"
    page.text(
        f"Hooks on the model's own {d.architecture} modules ({where}). That the stream behind a layer is the stream in "
        f"front plus its contributions is checked on data in every layer: {identity(d)} (of the layer's change). "
        "Numbers are means over tokens, reduced while streaming; nothing was cached over depth."
    )


def file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)
