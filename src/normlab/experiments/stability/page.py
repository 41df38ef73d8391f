"""The page of a stability map."""

from __future__ import annotations

from collections.abc import Callable

from normlab.experiments.compare.page import Line
from normlab.experiments.stability.result import ClaimOverSeeds, Point, Region, StabilityMap
from normlab.report import Page, console, table
from normlab.report.colours import BAD, MUTED
from normlab.report.figures import Trace, log_ticks, small_multiples
from normlab.report.tables import markdown_table
from normlab.report.terminal import show as show_number
from normlab.results import flat, page_of

PAGE_ONLY = ("unstable from", "gradient spikes")


@page_of.register
def build(result: StabilityMap) -> Page:
    page = Page("Where is training stable?", subtitle="normlab stability: learning rate x warm-up")
    for note in result.notes:
        page.text(note, style="warn")
    page.heading("The answer")
    for sentence in result.statements:
        page.text(sentence, style="lead" if len(result.statements) <= 4 else "")
    panels = {", ".join(filter(None, (r.scheme, f"{r.depth} layers", r.map))): _points(r) for r in result.regions}
    colours = {"colorscale": "Viridis", "reversescale": True, "colorbar": {"title": {"text": "loss"}}}
    figure, height = small_multiples(
        panels,
        x="learning rate",
        y="steps of warm-up",
        across={"type": "log", **log_ticks([p.lr for r in result.regions for line in r.warmups for p in line.points])},
        down={"type": "category", "categoryorder": "array", "categoryarray": _warmups(result)},
        layout={"hovermode": "closest", "coloraxis": colours},
    )
    page.figure(
        figure,
        height=height + 40,
        caption="Circles: stable, coloured by the held-out loss; diamonds: stable, but in at least one seed nothing was "
        "learned beyond the frequency of tokens. Crosses: unstable in at least one seed. Denser where the edges are.",
    )
    page.details(
        "How to read this",
        "A column is a learning rate, a row a length of warm-up, a mark all seeds of a setting. The further right circles "
        "reach, the higher the rates that the scheme bears. Where the circles of the lowest row reach as far as those of "
        "the others, warm-up is not needed.",
    )
    page.heading("The numbers")
    page.table(summary_rows(result), name="regions", caption="The edge is bracketed: stable at the one rate, unstable at the "
               "other. Learns: below the loss of single tokens. Usable: within 0.1 nats of the scheme's best.")  # fmt: skip
    if result.claims:
        page.table([claim_row(claim) for claim in result.claims], name="claims", caption="Tested over seeds.")
    page.table([{"a run is": word, "if": text} for word, text in result.criteria.items()], name="criteria")
    page.heading("Every run")
    rows = [flat(run) for run in result.cells]
    page.csv(rows, name="cells", caption=f"all {len(rows)} runs with their verdicts and gradient spikes")
    return page


def summary_rows(result: StabilityMap) -> list[Line]:
    return [
        {"scheme": region.scheme, "layers": region.depth,
         **({"map": region.map} if region.map else {}), "warm-up": line.warmup, "stable to": line.edge,
         "unstable from": line.unstable_from, "best loss": line.best_loss,
         "learns to": line.learns_up_to,
         "usable": f"{line.usable[0]:.3g} to {line.usable[1]:.3g}" if line.usable else "-",
         "gradient spikes": round(sum(p.gradient_spikes for p in line.points) / len(line.points), 1),
         "widest": "<-" if line.warmup == region.widest else ""}
        for region in result.regions for line in region.warmups
    ]  # fmt: skip


def markdown(result: StabilityMap) -> str:
    """What a repository keeps of a map: the sentences, the edges, the claims."""
    parts = [
        *result.notes,
        "\n".join(f"- {sentence}" for sentence in result.statements),
        markdown_table(summary_rows(result)),
    ]
    if result.claims:
        parts.append(markdown_table([claim_row(claim) for claim in result.claims]))
    return "\n\n".join(parts) + "\n"


def show(result: StabilityMap) -> None:
    """The sentences, the table and the claims, in a terminal."""
    screen = console()
    for note in result.notes:
        screen.print(note, style="yellow", markup=False)
    for sentence in result.statements:
        screen.print(sentence, markup=False)
    rows = summary_rows(result)
    screen.print(table(rows, columns=[name for name in rows[0] if name not in PAGE_ONLY]))
    for claim in result.claims:
        mean = "no seed" if claim.mean is None else f"{claim.mean:+.3g} {claim.number}, n = {claim.n}"
        why = f"; {claim.reason}" if claim.reason else ""
        screen.print(f"{claim.verdict:>9}: {claim.claim} ({mean}{why})", markup=False)


def _warmups(result: StabilityMap) -> list[str]:
    """From the bottom, the shortest first; by themselves categories stand in the order of their first mark."""
    return [str(steps) for steps in sorted({line.warmup for region in result.regions for line in region.warmups})]


def _points(region: Region) -> list[Trace]:
    kinds: dict[str, tuple[str, Callable[[Point], bool]]] = {
        "learns": ("circle", lambda p: p.stable and p.learned),
        "flat": ("diamond", lambda p: p.stable and not p.learned),
        "unstable": ("x", lambda p: not p.stable),
    }
    traces: list[Trace] = []
    for name, (symbol, belongs) in kinds.items():
        found = [(p, line.warmup) for line in region.warmups for p in line.points if belongs(p)]
        texts = [f"{', '.join(p.verdicts)}; {p.gradient_spikes:.0f} gradient spikes" for p, _ in found]
        marker: Trace = {"size": 13, "symbol": symbol, "color": BAD if name == "unstable" else MUTED}
        common: Trace = {"type": "scatter", "mode": "markers", "name": name}
        # The legend cannot draw a mark that is coloured by a scale: it gets one of its own.
        traces.append({**common, "x": [None], "y": [None], "marker": marker})
        if name != "unstable":
            texts = [f"loss {p.loss:.3f}; {text}" for (p, _), text in zip(found, texts, strict=True)]
            marker = {**marker, "color": [p.loss for p, _ in found], "coloraxis": "coloraxis"}
        xs, ys = [p.lr for p, _ in found], [str(w) for _, w in found]
        traces.append({**common, "x": xs, "y": ys, "text": texts, "marker": marker, "showlegend": False})
    return traces


def claim_row(claim: ClaimOverSeeds) -> Line:
    reach = "" if claim.low is None else f" ({show_number(claim.low)} to {show_number(claim.high)})"
    reason = f"; {claim.reason}" if claim.reason else ""
    return {
        "claim": claim.claim, "verdict": claim.verdict, "seeds": claim.n,
        "mean (95 %)": "-" if claim.mean is None else f"{show_number(claim.mean)}{reach}",
        "the number": f"{claim.number}{reason}",
    }  # fmt: skip
