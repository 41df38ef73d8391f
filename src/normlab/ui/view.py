"""What the page is told: a table of the runs and figures in the vocabulary of the reports, as plain values."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from normlab.experiments.demo.live import branches
from normlab.experiments.progress import ORDER
from normlab.experiments.runs.records import LayerRecord, TrainRecord, ValidationRecord
from normlab.experiments.runs.tail import whole_curve
from normlab.report.colours import SCHEME_COLOURS, scheme_colour, scheme_colours
from normlab.report.figures import Figure, Trace, figure, line, matrix
from normlab.report.panels import Panel, panels
from normlab.results import Plain, plain
from normlab.ui.feed import FolderFeed, RunFeed

Record = TypeVar("Record")
POINTS = 40_000  # of all curves together: more than a screen shows
FEWEST, MOST = 60, 600  # of one curve
NAMED = 12  # runs that have a name of their own in the legend


def state(feed: FolderFeed) -> Plain:
    """Everything on the first screen."""
    runs = sorted(feed.runs.values(), key=lambda run: (ORDER.index(run.state), run.name))
    drawn, height = curves(runs)
    return plain({
        "revision": feed.revision, "sentence": feed.sentence(), "left": feed.left(),
        "runs": [_row(run) for run in runs], "figures": [_figure(drawn, height, "Training loss and held-out loss.")],
    })  # fmt: skip


def _row(run: RunFeed) -> dict[str, object]:
    facts, training, validation = run.facts, run.log.training, run.log.validation
    return {
        "id": run.name, "state": run.state, "why": run.why, "step": run.step, "revision": run.revision,
        "steps": None if facts is None else facts.steps, "scheme": "" if facts is None else facts.scheme,
        "lr": None if facts is None else facts.lr, "left": run.left,
        "loss": training[-1].loss if training else None, "held_out": validation[-1].loss if validation else None,
    }  # fmt: skip


def curves(runs: Sequence[RunFeed]) -> tuple[Figure, int]:
    """A line a run, in the colour of its scheme. Where they are many, the legend names schemes and hovering names runs."""
    most = max(FEWEST, min(MOST, POINTS // max(1, 2 * len(runs))))
    trained = [RunCurve(run, _points(run.log.training, most)) for run in runs]
    held = [RunCurve(run, _points(run.log.validation, most)) for run in runs]
    lines = _named if len(runs) <= NAMED else _joined
    points = {"mode": "lines+markers", "marker": {"size": 4 if len(runs) <= NAMED else 2}}
    return panels([
        Panel("Training loss (nats)", lines(trained), "step", log_y=False, zero=False),
        Panel("Held-out loss (nats)", lines(held, **points), "step", log_y=False, zero=False),
    ])  # fmt: skip


@dataclass(frozen=True)
class RunCurve:
    """A run and the points of one of its curves."""

    run: RunFeed
    points: list[tuple[int, float | None]]


def _points(records: Sequence[TrainRecord | ValidationRecord], most: int) -> list[tuple[int, float | None]]:
    return [(record.step, _short(record.loss)) for record in _even(records, most)]


def _named(curves: Sequence[RunCurve], **style: object) -> list[Trace]:
    """Each run has its name in the legend."""
    colours = scheme_colours(sorted({_scheme(each.run) for each in curves}))
    look = {"width": 1.3, "opacity": 0.9, **style}
    return [_line(each.points, each.run.name, colours[_scheme(each.run)], look) for each in curves]


def _joined(curves: Sequence[RunCurve], **style: object) -> list[Trace]:
    """One line a scheme, with a gap behind each run: two hundred lines take a browser seconds, five do not.

    `runs` and `counts` are for the page, which names the run under the pointer.
    """
    schemes: dict[str, list[RunCurve]] = {}
    for each in curves:
        if each.points:
            schemes.setdefault(_scheme(each.run), []).append(each)
    colours = scheme_colours(sorted(schemes))
    read = {"hovertemplate": "%{text}<br>step %{x}: %{y:.4g}<extra></extra>", "hoverlabel": {"namelength": -1}}
    found = []
    for scheme, own in sorted(schemes.items()):
        points = [point for each in own for point in (*each.points, (None, None))]
        names = {"runs": [_text(each.run.name) for each in own], "counts": [len(each.points) + 1 for each in own]}
        look = {"width": 1, "opacity": 0.75, "connectgaps": False, **read, **names, **style}
        found.append(_line(points, scheme, colours[scheme], look))
    return found


def _line(points: Sequence[tuple[object, object]], name: str, colour: str, style: Mapping[str, object]) -> Trace:
    return line([x for x, _ in points], [y for _, y in points], _text(name), colour, **style)


def one(run: RunFeed) -> Plain:
    """The page of one run: its whole curve, and its layers over time."""
    records = whole_curve(run.log.path)
    steps, name, colour = [r.step for r in records], _text(run.name), _colour(run)
    losses = line(steps, [_short(r.loss) for r in records], name, colour)
    norms = line(steps, [_short(r.grad_norm) for r in records], name, colour)
    drawn, height = panels(
        [
            Panel("Training loss (nats), spikes kept", [losses], "step", log_y=False),
            Panel("Gradient norm", [norms], "step"),
        ],
        layout={"showlegend": False},
    )
    figures = [_figure(drawn, height - 60, "The whole run.")]
    figures += [_figure(found, 380, caption) for caption, found in _layers(run.log.layers)]
    if (now := _now(run)) is not None:
        figures.append(_figure(*now, "The newest look into the layers."))
    return plain({"id": run.name, "state": run.state, "why": run.why, "figures": figures})


def _layers(looks: Sequence[LayerRecord]) -> list[tuple[str, Figure]]:
    """Layer by step, in colours: what is where, and when it came."""
    if len(looks) < 2:
        return []
    steps = [look.step for look in looks]
    wanted: dict[str, Callable[[LayerRecord], Sequence[float | None] | None]] = {
        "Stream: rms of what each branch reads (log10), over time.": lambda look: look.magnitude,
        "Gradient: share of each layer (log10), over time.": lambda look: look.gradient_share,
    }
    found = []
    for caption, of in wanted.items():
        rows = [of(look) or [] for look in looks]
        width = max(map(len, rows))
        if not width:
            continue
        values = [[_log(row[i]) if i < len(row) else None for row in rows] for i in range(width)]
        across = "branch" if "branch" in caption else "layer"
        trace = matrix(values, x=list(range(len(steps))), y=list(range(1, width + 1)), hoverongaps=False)
        every = max(1, len(steps) // 6)
        said = {"tickvals": list(range(0, len(steps), every)), "ticktext": [str(s) for s in steps[::every]]}
        found.append((caption, figure([trace], x="step", y=across, across=said, layout={"showlegend": False})))
    return found


def _now(run: RunFeed) -> tuple[Figure, int] | None:
    """Attention and FFN as two lines."""
    if not run.log.layers:
        return None
    look = run.log.layers[-1]

    def both(values: Sequence[float | None] | None) -> list[Trace]:
        lines = {"attention": branches(values, 0), "FFN": branches(values, 1)}
        return [
            line(range(1, len(v) + 1), [_short(x) for x in v], name, at) for at, (name, v) in enumerate(lines.items())
        ]

    shares = look.gradient_share or []
    drawn, height = panels([
        Panel("What a branch adds, over what it reads", both(look.contribution), "layer"),
        Panel("Effect of a branch on what the head reads", both(look.effect), "layer"),
        Panel("Gradient: share of each layer", [line(range(1, len(shares) + 1), shares, "gradient", 2)], "layer"),
    ])  # fmt: skip
    return drawn, height


def _figure(drawn: Figure, height: int, caption: str) -> dict[str, object]:
    return {**drawn, "height": height, "caption": caption}


def _text(name: str) -> str:
    """A folder's name for plotly, which reads some markup."""
    return html.escape(name)


def _scheme(run: RunFeed) -> str:
    """What its configuration says; before that is read, what its folder's name says."""
    if run.facts is not None:
        return run.facts.scheme
    said = run.folder.name.split("-")[0]
    return said if said in SCHEME_COLOURS else "being read"


def _colour(run: RunFeed) -> str:
    return scheme_colour(_scheme(run))


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _log(value: float | None) -> float | None:
    return None if value is None or not value > 0 or not math.isfinite(value) else round(math.log10(value), 3)


def _even(records: Sequence[Record], most: int) -> Sequence[Record]:
    """At most so many, the first and the last among them."""
    if len(records) <= most:
        return records
    return [records[round(i * (len(records) - 1) / (most - 1))] for i in range(most)]
