"""The demo as a story on one page: whose stream grows, what training needs, what is wrong. It ranks nothing."""

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
        "normlab compare --data my.txt     # rates tuned for each scheme, several random seeds, intervals\n"
        "normlab watch runs/demo           # what this page shows, live\n"
        "normlab schemes show post_norm    # equation, initialisation, traps"
    )
    return page


def answer(atlas: Atlas | None, runs: Sequence[Trained], planted: Planted | None) -> list[str]:
    """One sentence a stage, from its numbers."""
    found = list(atlas_page.sentences(atlas)) if atlas is not None else []
    return [*found, *learned(runs), *([fault_sentence(planted)] if planted is not None else [])]


ILLUSTRATION = "One learning rate for all and one random seed: an illustration, not a comparison"


def learned(runs: Sequence[Trained]) -> list[str]:
    """Who predicts better than a model that ignores the context, and where the gradient is in who does not. No order."""
    ended = [run for run in runs if run.whole and run.floor is not None]
    if not ended:
        return []
    steps, floor = ended[0].config.train.steps, ended[0].floor
    better, worse = (_together([run for run in ended if run.learned is which]) for which in (True, False))
    found = [f"{ILLUSTRATION}."]
    if better:
        found.append(
            f"After {steps} steps {better} predicted better than a model that ignores the context ({floor:.2f} nats)."
        )
    if worse:
        found.append(f"After {steps} steps {worse} predicted no better than a model that ignores the context.")
    for run in ended:
        shares = gradient(_last(run))
        if not run.learned and shares:
            at = shares.index(max(shares)) + 1
            found.append(
                f"At the end of {run.name} layer {at} of {len(shares)} has {100 * max(shares):.0f} % of the gradient, "
                f"layer 1 has {_percent(shares[0])}."
            )
    return found


def _together(runs: Sequence[Trained]) -> str:
    """Scheme by scheme, as they were asked for."""
    warmups: dict[str, set[bool]] = {}
    for run in runs:
        warmups.setdefault(run.scheme, set()).add(run.warmup > 0)
    said = {True: "with a warm-up", False: "without a warm-up"}
    return ", ".join(
        f"{scheme} ({said[on.pop()] if len(on) == 1 else 'with a warm-up and without'})"
        for scheme, on in warmups.items()
    )


def _percent(share: float) -> str:
    return "less than 0.01 %" if share < 1e-4 else f"{100 * share:.2g} %"


def fault_sentence(planted: Planted) -> str:
    fault = planted.fault
    what = f"the gain of one norm (layer {fault.layer}, before attention) times {fault.factor:g}"
    if planted.found:
        return f"A planted fault, {what}, is found: “{planted.after.headline}.”"
    return f"A planted fault, {what}, is not found: the diagnosis says “{planted.after.headline}.”"


def _before(page: Page, atlas: Atlas) -> None:
    page.heading("1. Before training: whose stream grows")
    drawn, height = atlas_page.overview(atlas.entries)
    page.figure(drawn, height=height, caption=atlas_page.OVERVIEW)
    page.details(
        "How to read this",
        f"{atlas.request.shape}. A dot right of the dotted line in the first column is a stream that grows: each later "
        "layer is a smaller part of it (dilution). A dot far left in the second column is a last branch that hardly counts: "
        "taking it out changes little of what the head reads. Where schemes are one function these dots are equal.",
    )
    page.links({f"The whole atlas of {len(atlas.entries)} schemes, with every layer": "atlas.html"})


def _while(page: Page, runs: Sequence[Trained]) -> None:
    page.heading("2. While training: with a warm-up, and without")
    config = runs[0].config
    warmup = max(run.warmup for run in runs)
    page.text(
        f"{ILLUSTRATION}. The same model ({config.model.depth} layers, width {config.model.dim}), start, text, rate "
        f"({config.train.lr:g}) and random seed; the schemes differ, and each is trained without a warm-up and with one of "
        f"{warmup} of {config.train.steps} steps. No rate was tuned, so the order of these curves says nothing about "
        "schemes; `normlab compare` tunes the rate of each."
    )
    page.figure(
        _losses(runs),
        height=400,
        caption="Held-out loss. Dashed: with a warm-up. Dotted: a model that ignores the context.",
    )
    drawn, height = panels([
        Panel("Effect of attention on what the head reads", _by_depth(runs, lambda r: _effects(r, 0)), "layer"),
        Panel("Effect of the FFN on what the head reads", _by_depth(runs, lambda r: _effects(r, 1)), "layer"),
        Panel("Gradient at the start: share of each layer", _by_depth(runs, gradient, first=True), "layer"),
        Panel("Gradient at the end: share of each layer", _by_depth(runs, gradient), "layer"),
    ])  # fmt: skip
    page.figure(drawn, height=height, label="Effects of branches and where the gradient is, by layer")
    page.details(
        "How to read this",
        "The effect of a branch is how much what the head reads changes when the branch is taken out (the mean over tokens "
        "of |h' - h| / |h|, at the end of training). Shares of the gradient are of its norm. At the start the arms of "
        "one scheme are the same model.",
        "A warm-up raises the learning rate from 0 to its peak, so that the first steps are small. A lower rate is another "
        "way to small steps: `normlab stability` draws the map of both.",
    )
    texts = [f"{run.name}:\n{run.written}" for run in runs if run.written]
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
        losses = [record.loss for record in run.log.validation]
        traces.append(line(steps, losses, run.name, colours[run.scheme], width=2.5, dash=_dash(run)))
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
        traces.append(line(range(1, len(values) + 1), values, run.name, colours[run.scheme], dash=_dash(run)))
    return traces


def _dash(run: Trained) -> str:
    return "dash" if run.warmup else "solid"


def _effects(look: LayerRecord | None, kind: int) -> list[float]:
    return branches(None if look is None else look.effect, kind)


def _last(run: Trained) -> LayerRecord | None:
    return run.log.layers[-1] if run.log.layers else None
