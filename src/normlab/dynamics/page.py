"""The page of `normlab dynamics`: curves, tails, norms, variance, and spheres of tokens to play and to turn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from normlab.dynamics.experiment import Findings
from normlab.dynamics.simulate import Simulation
from normlab.report import Page
from normlab.report.page import script_json

COLORS = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#e45756",
    "#b279a2",
    "#72b7b2",
    "#eeca3b",
    "#9d755d",
    "#ff9da6",
    "#79706e",
    "#bab0ac",
)
LAWS = {"power": "C/t^p", "exponential": "C e^-kt", "stretched": "C e^-k√t/√t", "clocked": "C α e^-k∫α"}
KEEP = 1e-30  # nothing below is drawn on a logarithmic axis


def beginning_and_end(found: Findings) -> list[dict[str, Any]]:
    """The paper's table: initial velocity and terminal law, measured and predicted."""
    rows = []
    for label, row in found.rows.items():
        key = "terminal_exponent" if row["law"] == "power" else "terminal_rate"
        shown = {
            "scheme": label,
            "gamma'(0)": row["initial_velocity"],
            "theory": row["initial_velocity_theory"],
            "end": LAWS[row["law"]],
            "read": row[key],
            "theory ": row[f"{key}_theory"],
        }
        rows.append(shown)
    return rows


def constants_and_times(found: Findings) -> list[dict[str, Any]]:
    """Terminal constants, and when the mean cosine reaches each level."""
    rows = []
    for label, row in found.rows.items():
        times = {f"t({level})": t for level, t in row["hitting_times"].items()}
        rows.append({"scheme": label, "C": row["constant"], "theory": row["constant_theory"], **times})
    if all(row["C"] is None for row in rows):
        return [{k: v for k, v in row.items() if k not in ("C", "theory")} for row in rows]
    return rows


def build_page(found: Findings, spheres: Simulation | None, *, notes: list[str], command: str) -> Page:
    s = found.setting
    about = f"n = {s.n}, beta = {s.beta:.4g}, start {s.init}, weights {s.weights}, t up to {s.time:g}"
    page = Page("How norms move tokens on the sphere", subtitle=about)
    page.text(
        "A token is a direction and a length. Attention pulls directions together; where the norms sit decides how "
        "fast it does at the beginning and how it dies out at the end.",
        style="lead",
    )
    for note in notes:
        page.text(note, style="note")
    for warning in found.warnings:
        page.text(warning, style="warn")
    page.heading("Predicted and measured")
    caption = "gamma' is the rate of the mean cosine; read: the exponent p or rate k of its end."
    page.table(beginning_and_end(found), name="dynamics", caption=caption)
    caption = "C as read and in closed form; t(x): when the mean cosine reaches x."
    page.table(constants_and_times(found), name="hitting-times", caption=caption)
    page.table(
        [{"scheme": label, "as t grows": row["clustering"]} for label, row in found.rows.items()], name="clustering"
    )
    if spheres is not None:
        page.heading("Tokens on a sphere")
        e = spheres.setting
        page.text(
            f"{e.n} tokens in d = 3, beta = {e.beta:.4g}, weights {e.weights}; every scheme has the same uniform start "
            f"(seed {e.seeds[0]})."
        )
        page.html(sphere_fragment(spheres))
    page.heading("Cosine between tokens")
    page.figure(_lines(found, "cosine", "mean cosine", band=True), caption=_band_caption(found), height=420)
    page.heading("How it ends")
    page.figure(
        _tails(found), caption="The rate of the mean cosine on two logarithmic axes: a power law is a line.", height=420
    )
    page.heading("Norms")
    page.figure(
        _lines(found, "radius", "mean norm r"), caption="Length of the tokens: flat where a norm follows the sum."
    )
    page.heading("Variance")
    figure = _lines(found, "variance", "Var", log=True)
    page.figure(figure, caption="Var = (1/n) sum |theta - mean|^2. In a small cone Var' = -(2/s) Var.")
    page.heading("How this was made")
    page.code(command)
    sources = [{"scheme": label, **row["sources"]} for label, row in found.rows.items() if row.get("sources")]
    if sources:
        columns = ["scheme", "initial_velocity", "terminal", "clustering"]
        page.table(sources, name="sources", caption="Where each prediction comes from.", columns=columns)
    return page


def sphere_fragment(run: Simulation) -> str:
    """The player as markup of our own; the data is JSON that is safe inside a script."""
    assert run.tokens is not None
    schemes = [
        {
            "title": row.title,
            "points": np.round(run.tokens[i, 0], 4).ravel().tolist(),
            "cosine": run.cosine[i, 0].tolist(),
            "radius": run.radius[i, 0].tolist(),
        }
        for i, row in enumerate(run.fields)
    ]
    data = {"t": run.t.tolist(), "tokens": run.setting.n, "schemes": schemes}
    template = (Path(__file__).parent / "templates" / "sphere.html").read_text(encoding="utf-8")
    return template.replace("@@DATA@@", script_json(data))


def _band_caption(found: Findings) -> str:
    seeds = len(found.setting.seeds)
    if found.equation == "scalar" or seeds == 1:
        return "One trajectory a scheme."
    return f"Mean of {seeds} seeds; the band holds 90 % of them."


def _lines(found: Findings, key: str, title: str, *, log: bool = False, band: bool = False) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    for i, (label, curve) in enumerate(found.curves.items()):
        color = COLORS[i % len(COLORS)]
        if band and "low" in curve and len(found.setting.seeds) > 1:
            data.append(
                {
                    "x": curve["t"] + curve["t"][::-1],
                    "y": curve["high"] + curve["low"][::-1],
                    "fill": "toself",
                    "fillcolor": color,
                    "opacity": 0.18,
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                    "showlegend": False,
                    "type": "scatter",
                    "mode": "lines",
                }
            )
        y = [v if not log or v > KEEP else None for v in curve[key]]
        data.append(
            {"x": curve["t"], "y": y, "name": label, "type": "scatter", "mode": "lines", "line": {"color": color}}
        )
    axis = {"title": {"text": title}, "type": "log" if log else "linear", "exponentformat": "power"}
    return {"data": data, "layout": {"xaxis": {"title": {"text": "t"}}, "yaxis": axis, "hovermode": "closest"}}


def _tails(found: Findings) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    for i, (label, tail) in enumerate(found.tails.items()):
        row = found.rows[label]
        color = COLORS[i % len(COLORS)]
        key = "terminal_exponent" if row["law"] == "power" else "terminal_rate"
        value = row[key]
        fitted = (
            "" if value is None or math.isnan(value) else f" ({'p' if row['law'] == 'power' else 'k'} = {value:.3f})"
        )
        y = [v if v > KEEP else None for v in tail["velocity"]]
        line = {
            "x": tail["t"],
            "y": y,
            "name": label + fitted,
            "type": "scatter",
            "mode": "lines",
            "line": {"color": color},
        }
        data.append(line)
        predicted = _predicted(row, tail["t"])
        if predicted:
            dashed = {"color": color, "dash": "dot", "width": 1}
            data.append(
                {"x": predicted[0], "y": predicted[1], "type": "scatter", "mode": "lines", "line": dashed,
                 "showlegend": False, "name": f"{label} predicted"}
            )  # fmt: skip
    axis = {"type": "log", "exponentformat": "power"}
    layout = {"xaxis": {**axis, "title": {"text": "t"}}, "yaxis": {**axis, "title": {"text": "gamma'(t)"}}}
    return {"data": data, "layout": layout}


def _predicted(row: dict[str, Any], times: list[float]) -> tuple[list[float], list[float]] | None:
    """The law with its closed-form constant, over the second half of the logarithmic axis."""
    c = row["constant_theory"]
    if c is None or not math.isfinite(c) or not times:
        return None
    t = np.array([x for x in times if x > math.sqrt(times[0] * times[-1])])
    if row["law"] == "power":
        y = c / t ** row["terminal_exponent_theory"]
    elif row["law"] == "exponential":
        y = c * np.exp(-row["terminal_rate_theory"] * t)
    else:
        y = c * np.exp(-row["terminal_rate_theory"] * np.sqrt(t + 1)) / np.sqrt(t + 1)
    seen = (y > KEEP) & (y < 10.0)
    return t[seen].tolist(), y[seen].tolist()
