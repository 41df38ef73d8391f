"""The demo as a story on one page: who grows, who learns, what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from normlab.experiments.atlas import page as atlas_page
from normlab.experiments.atlas.measure import Atlas
from normlab.experiments.demo.live import branches, gradient
from normlab.experiments.demo.stages import Planted, Trained
from normlab.experiments.runs.records import LayerRecord
from normlab.probes.show.body import picture
from normlab.report import Page
from normlab.report.colours import THEORY, scheme_colours
from normlab.report.figures import Trace, figure, line, theory
from normlab.report.panels import Panel, panels

TITLE = "Where norms go, and what it does to a deep Transformer"


def build(atlas: Atlas | None, runs: Sequence[Trained], planted: Planted | None) -> Page:
    page = Page(TITLE, subtitle="normlab demo: before training, while training, and a fault")
    page.heading("Answer")
    for sentence in answer(atlas, runs, planted):
        page.text(sentence, style="lead")
    if atlas is not None:
        _before(page, atlas)
    if runs:
        _while(page, runs)
    if planted is not None:
        _fault(page, planted)
    page.heading("What next")
    page.text("Your own model, your own data, and what each scheme is:")
    page.code(
        "normlab diagnose MODEL            # a folder, a Hugging Face id, a .gguf file\n"
        "normlab compare --data my.txt     # tuned, seeded, with intervals\n"
        "normlab watch runs/demo           # what this page shows, live\n"
        "normlab schemes show post_norm    # equation, initialisation, traps"
    )
    return page


def answer(atlas: Atlas | None, runs: Sequence[Trained], planted: Planted | None) -> list[str]:
    """One sentence a stage, from its numbers."""
    found = list(atlas_page.sentences(atlas)) if atlas is not None else []
    return [*found, *learned(runs), *([fault_sentence(planted)] if planted is not None else [])]


def learned(runs: Sequence[Trained]) -> list[str]:
    """Who learned more than how frequent each character is, and where the gradient was in who did not."""
    known = [(run, run.loss) for run in runs if run.loss is not None]
    if not known:
        return []
    steps = max(run.log.training[-1].step for run, _ in known if run.log.training)
    losses = ", ".join(f"{run.scheme} {loss:.2f}" for run, loss in known)
    floor = known[0][0].floor
    beside = "" if floor is None else f"; the frequencies of characters alone give {floor:.2f}"
    found = [f"After {steps} steps the held-out loss (nats) is {losses}{beside}."]
    for run, _ in known:
        shares = gradient(_last(run))
        whole = bool(run.log.training) and run.log.training[-1].step >= run.config.train.steps
        if whole and not run.learned and shares:  # of a run that was stopped nothing is said
            top = 100 * max(shares)
            at = shares.index(max(shares)) + 1
            found.append(
                f"{run.scheme} learned nothing from context: layer {at} of {len(shares)} has {top:.0f} % of its gradient, "
                f"layer 1 has {_percent(shares[0])}."
            )
    return found


def _percent(share: float) -> str:
    return "less than 0.01 %" if share < 1e-4 else f"{100 * share:.2g} %"


def fault_sentence(planted: Planted) -> str:
    fault = planted.fault
    what = f"the gain of one norm (layer {fault.layer}, before attention) times {fault.factor:g}"
    if planted.found:
        return f"A planted fault, {what}, is found: “{planted.after.headline}.”"
    return f"A planted fault, {what}, is not found: the diagnosis says “{planted.after.headline}.”"


def _before(page: Page, atlas: Atlas) -> None:
    page.heading("1. Before training: who grows")
    drawn, height = atlas_page.overview(atlas.entries)
    page.figure(drawn, height=height, caption=atlas_page.OVERVIEW)
    page.details(
        "How to read this",
        f"{atlas.request.shape}. A dot right of the dotted line in the first column is a stream that grows: each later "
        "layer is a smaller part of it (dilution). A dot far left in the second column is a last layer that hardly counts.",
    )
    page.links({f"The whole atlas of {len(atlas.entries)} schemes, with every layer": "atlas.html"})


def _while(page: Page, runs: Sequence[Trained]) -> None:
    page.heading("2. While training: who learns")
    config = runs[0].config
    page.text(
        f"The same model ({config.model.depth} layers, width {config.model.dim}), text, rate "
        f"({config.train.lr:g}) and seed; only the scheme differs. One seed: this shows what can happen, not how often."
    )
    page.figure(_losses(runs), height=380, caption="Held-out loss. Dotted: a model that ignores the context.")
    drawn, height = panels([
        Panel("What attention adds, over what it reads", _by_depth(runs, lambda r: branches(r, 0)), "layer"),
        Panel("What the FFN adds, over what it reads", _by_depth(runs, lambda r: branches(r, 1)), "layer"),
        Panel("Gradient at the start: share of each layer", _by_depth(runs, gradient, first=True), "layer"),
        Panel("Gradient at the end: share of each layer", _by_depth(runs, gradient), "layer"),
    ])  # fmt: skip
    page.figure(drawn, height=height, label="What branches add and where the gradient is, by layer")
    page.details(
        "How to read this",
        "Pre-Norm's stream grows with depth, so late layers add little to it. Block AttnRes lets a layer choose what it "
        "reads, so late layers keep their weight. In Post-Norm each addition is normalised again: at this depth and rate "
        "the gradient no longer reaches the early layers. A lower rate or a longer warm-up may help it; "
        "`normlab stability` draws the map.",
    )
    texts = [f"{run.scheme}:\n{run.written}" for run in runs if run.written]
    if texts:
        page.text("What they write after “KING”:")
        page.code("\n\n".join(texts))


def _fault(page: Page, planted: Planted) -> None:
    page.heading("3. A fault, and its diagnosis")
    before, after = planted.before, planted.after
    page.text(f"Before: {before.headline}.", style="good" if before.worst in (None, "note") else "warn")
    page.text(f"After: {after.headline}.", style="bad" if planted.found else "warn")
    drawn, height = picture(after)
    page.figure(
        drawn, height=height, caption="A column a layer, counted from 0; a row a subject of which something is said."
    )
    losses = [reading.value for reading in (before.loss, after.loss) if reading is not None]
    if len(losses) == 2:
        page.text(f"The loss alone goes from {losses[0]:.2f} to {losses[1]:.2f} nats, and does not say where.")
    page.links({"The whole diagnosis": "diagnosis.html"})


def _losses(runs: Sequence[Trained]) -> dict[str, object]:
    colours = scheme_colours(run.scheme for run in runs)
    traces: list[Trace] = []
    for run in runs:
        steps = [record.step for record in run.log.validation]
        traces.append(
            line(steps, [record.loss for record in run.log.validation], run.scheme, colours[run.scheme], width=2.5)
        )
    floors = [run.floor for run in runs if run.floor is not None]
    last = max((record.step for run in runs for record in run.log.validation), default=1)
    if floors:
        traces.append(theory([0, last], [floors[0]] * 2, "ignores the context", THEORY))
    return figure(traces, x="step", y="held-out loss (nats per character)")


Of = Callable[[LayerRecord | None], Sequence[float]]


def _by_depth(runs: Sequence[Trained], of: Of, *, first: bool = False) -> list[Trace]:
    colours = scheme_colours(run.scheme for run in runs)
    traces = []
    for run in runs:
        look = (run.log.layers[0] if run.log.layers else None) if first else _last(run)
        values = [value if math.isfinite(value) else None for value in of(look)]
        traces.append(line(range(1, len(values) + 1), values, run.scheme, colours[run.scheme]))
    return traces


def _last(run: Trained) -> LayerRecord | None:
    return run.log.layers[-1] if run.log.layers else None
