"""The page of `normlab dynamics`: curves, tails, norms, variance, and spheres of tokens to play and to turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from normlab.dynamics.experiment import DepthCurve, DynamicsFindings
from normlab.dynamics.flow.simulate import Simulation
from normlab.dynamics.laws.readings import SchemeReport
from normlab.report import Page
from normlab.report.colours import scheme_colour, scheme_colours
from normlab.report.figures import Figure, Trace, band, figure, line, theory
from normlab.report.page import script_json

LAWS = {"power": "C/t^p", "exponential": "C e^-kt", "stretched": "C e^-k√t/√t", "clocked": "C α e^-k∫α"}
KEEP = 1e-30  # nothing below is drawn on a logarithmic axis


def beginning_and_end(found: DynamicsFindings) -> list[dict[str, object]]:
    """The paper's table: initial velocity and terminal law, measured and predicted."""
    return [
        {
            "scheme": label,
            "gamma'(0)": row.report.initial_velocity,
            "theory": row.report.initial_velocity_theory,
            "end": LAWS[row.report.law],
            "read": row.report.terminal.value,
            "theory ": row.report.terminal_theory,
        }
        for label, row in found.schemes.items()
    ]


def constants_and_times(found: DynamicsFindings) -> list[dict[str, object]]:
    """Terminal constants, and when the mean cosine reaches each level."""
    rows: list[dict[str, object]] = []
    known = any(row.report.constant is not None for row in found.schemes.values())
    for label, row in found.schemes.items():
        constants = {"C": row.report.constant, "theory": row.report.constant_theory} if known else {}
        times = {f"t({level})": t for level, t in row.report.hitting_times.items()}
        rows.append({"scheme": label, **constants, **times})
    return rows


def build_page(found: DynamicsFindings, spheres: Simulation | None, *, notes: list[str], command: str) -> Page:
    s = found.setting
    about = f"n = {s.n}, beta = {s.beta:.4g}, start {s.init}, weights {s.weights}, t up to {s.time:g}"
    page = Page("How norms move tokens on the sphere", subtitle=about)
    page.text(sentence(found), style="lead")
    for note in notes:
        page.text(note, style="note")
    for warning in found.warnings:
        page.text(warning, style="warn")
    if spheres is not None:
        page.heading("Tokens on a sphere")
        e = spheres.setting
        page.text(
            f"{e.n} tokens in d = 3, beta = {e.beta:.4g}, weights {e.weights}; every scheme has the same uniform start "
            f"(seed {e.seeds[0]})."
        )
        page.html(sphere_fragment(spheres))
    page.details(
        "How to read this",
        "A token is a direction and a length. Attention pulls directions together; where the norms sit decides how fast it "
        "does at the beginning and how it dies out at the end. A mean cosine of 0: unrelated tokens; of 1: all are alike.",
    )
    page.heading("Cosine between tokens")
    page.figure(
        _lines(found, lambda c: c.cosine, "mean cosine of two tokens", with_band=True),
        caption=_band_caption(found),
        height=420,
    )
    page.heading("How it ends")
    page.figure(
        _tails(found), caption="The rate of the mean cosine on two logarithmic axes: a power law is a line.", height=420
    )
    page.heading("Norms")
    page.figure(
        _lines(found, lambda c: c.radius, "mean norm of a token"),
        caption="Length of the tokens: flat where a norm follows the sum.",
    )
    page.heading("Variance")
    drawn = _lines(found, lambda c: c.variance, "variance of directions", log=True)
    page.figure(drawn, caption="Var = (1/n) sum |theta - mean|^2 of the directions. In a small cone Var' = -(2/s) Var.")
    page.heading("Predicted and measured")
    caption = "gamma' is the rate of the mean cosine; read: the exponent p or rate k of its end."
    page.table(beginning_and_end(found), name="dynamics", caption=caption)
    caption = "C as read and in closed form; t(x): when the mean cosine reaches x."
    page.table(constants_and_times(found), name="hitting-times", caption=caption)
    page.table(
        [{"scheme": label, "as t grows": row.report.clustering} for label, row in found.schemes.items()],
        name="clustering",
    )
    page.heading("How this was made")
    page.code(command)
    sources = [
        {
            "scheme": label,
            "beginning": row.report.sources.initial_velocity,
            "end": row.report.sources.terminal,
            "as t grows": row.report.sources.clustering,
        }
        for label, row in found.schemes.items()
        if row.report.sources is not None
    ]
    if sources:
        page.table(sources, name="sources", caption="Where each prediction comes from.")
    return page


def sentence(found: DynamicsFindings) -> str:
    """Who is alike first and last, and how far the ends lie from what is predicted."""
    times = {label: row.report.hitting_times.get("0.5") for label, row in found.schemes.items()}
    reached = {label: t for label, t in times.items() if t is not None and math.isfinite(t)}
    ends = [
        abs(row.report.terminal.value / row.report.terminal_theory - 1)
        for row in found.schemes.values()
        if row.report.terminal_theory and math.isfinite(row.report.terminal.value)
    ]
    if len(reached) < 2:
        told = "Fewer than two schemes bring their tokens to a mean cosine of 0.5 in this time."
    else:
        first, last = min(reached, key=lambda k: reached[k]), max(reached, key=lambda k: reached[k])
        told = (
            f"Tokens become alike first in {first} (mean cosine 0.5 at t = {reached[first]:.3g}) and last in {last} "
            f"(t = {reached[last]:.3g})."
        )
    return (
        told
        if not ends
        else f"{told} The exponents at the end are within {100 * max(ends):.2g} % of the predicted ones."
    )


def sphere_fragment(run: Simulation) -> str:
    """The player as markup of our own; the data is JSON that is safe inside a script."""
    assert run.tokens is not None
    schemes = [
        {
            "title": row.name,
            "colour": scheme_colour(row.name),
            "points": np.round(run.tokens[i, 0], 4).ravel().tolist(),
            "cosine": run.cosine[i, 0].tolist(),
            "radius": run.radius[i, 0].tolist(),
        }
        for i, row in enumerate(run.fields)
    ]
    data = {"t": run.t.tolist(), "tokens": run.setting.n, "schemes": schemes}
    template = (Path(__file__).parent / "templates" / "sphere.html").read_text(encoding="utf-8")
    return template.replace("@@DATA@@", script_json(data))


def _band_caption(found: DynamicsFindings) -> str:
    seeds = len(found.setting.seeds)
    if found.equation == "scalar" or seeds == 1:
        return "One trajectory a scheme."
    return f"Mean of {seeds} seeds; the band holds 90 % of them."


def _lines(
    found: DynamicsFindings,
    of: Callable[[DepthCurve], list[float]],
    title: str,
    *,
    log: bool = False,
    with_band: bool = False,
) -> Figure:
    data: list[Trace] = []
    colours = scheme_colours(found.schemes)
    for label, row in found.schemes.items():
        curve = row.curve
        if with_band and curve.low is not None and curve.high is not None and len(found.setting.seeds) > 1:
            data.append(band(curve.t, curve.low, curve.high, colours[label]))
        y = [v if not log or v > KEEP else None for v in of(curve)]
        data.append(line(curve.t, y, label, colours[label]))
    return figure(data, x="time t (depth)", y=title, log_y=log)


def _tails(found: DynamicsFindings) -> Figure:
    data: list[Trace] = []
    colours = scheme_colours(found.schemes)
    for label, row in found.schemes.items():
        value = row.report.terminal.value
        letter = "p" if row.report.law == "power" else "k"
        fitted = "" if math.isnan(value) else f" ({letter} = {value:.3f})"
        y = [v if v > KEEP else None for v in row.tail.velocity]
        data.append(line(row.tail.t, y, label + fitted, colours[label]))
        predicted = _predicted(row.report, row.tail.t)
        if predicted:
            data.append(theory(*predicted, f"{label} predicted", colours[label], showlegend=False))
    return figure(data, x="time t (depth)", y="rate of the mean cosine", log_x=True, log_y=True)


def _predicted(row: SchemeReport, times: list[float]) -> tuple[list[float], list[float]] | None:
    """The law with its closed-form constant, over the second half of the logarithmic axis."""
    c, end = row.constant_theory, row.terminal_theory
    if c is None or end is None or not math.isfinite(c) or not times:
        return None
    t = np.array([x for x in times if x > math.sqrt(times[0] * times[-1])])
    if row.law == "power":
        y = c / t**end
    elif row.law == "exponential":
        y = c * np.exp(-end * t)
    else:
        y = c * np.exp(-end * np.sqrt(t + 1)) / np.sqrt(t + 1)
    seen = (y > KEEP) & (y < 10.0)
    return t[seen].tolist(), y[seen].tolist()
