"""The report of a length generalization experiment: JSON, CSV, HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normlab.experiments.lengthgen import METRICS, SETTING, Lengthgen, closed_form, rows, stability, summarise
from normlab.experiments.verdicts import against_first
from normlab.files import write_json, write_text
from normlab.report import Page
from normlab.report.terminal import finite

SHOWN = "raw"
CURVES = {
    "tv": "Total variation to the exact next-token distribution",
    "auc": "Legality AUC (mean over prefixes)",
    "illegal_mass": "Probability on illegal tokens",
    "attention_entropy": "Attention entropy / log(length)",
    "attention_rms": "RMS of the attention output",
}


def collect(config: Lengthgen, summaries: dict[str, dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Everything that the report holds, as plain values."""
    every = rows(config, summaries)
    summary = summarise(every)
    return finite(
        {
            "config": config.to_dict(),
            "rows": every,
            "summary": summary,
            "against_first": against_first(every),
            "closed_form": closed_form(config, summary),
            "stability": stability(config, folder),
            "runs": {
                name: {
                    key: s.get(key)
                    for key in ("status", "step", "loss", "seconds", "versions", "commit", "threads", "how")
                }
                for name, s in summaries.items()
            },
        }
    )


def write(result: dict[str, Any], folder: Path, *, command: str) -> Path:
    write_json(folder / "lengthgen.json", result)
    write_text(folder / "lengthgen.csv", to_csv(result["rows"]))
    return page(result, command).write(folder / "report.html")


def to_csv(table: Sequence[dict[str, Any]]) -> str:
    head = [*SETTING, "seed", "weights", "length", "status", *METRICS]
    text = io.StringIO()
    writer = csv.DictWriter(text, head, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def page(result: dict[str, Any], command: str) -> Page:
    config, summary = result["config"], result["summary"]
    task = config["task"]["task"]
    made = Page(
        f"Length generalization: {task.replace('_', ' ')}",
        subtitle=f"trained to length {config['train_length']}, {config['steps']} steps, {config['seeds']} seeds, "
        f"{config['preset'].replace('_', '-')} model",
    )
    made.code(command)
    diverged = sum(run["status"] == "diverged" for run in result["runs"].values())
    if diverged:
        made.text(
            f"{diverged} of {len(result['runs'])} runs diverged; their rows score their last weights.", style="warn"
        )
    made.text(
        "Lines are medians over seeds, bands run from the smallest to the largest seed. The weights are the raw ones; "
        "EMA and BEMA are in the tables."
    )
    for metric, title in CURVES.items():
        if any(row.get(metric) is not None for row in summary):
            made.heading(title)
            made.figure(_figure(result, metric, title), caption=f"{title} against length.", height=420)
    if result["closed_form"]:
        made.text(
            "Dotted: the closed forms of the exact construction without a norm (gap c/s) and with one on the attention "
            "output, both brought to the first scheme's total variation at the training length.",
            style="note",
        )
    if result["against_first"]:
        first = result["against_first"][0]
        made.heading(f"Against {first['against']}")
        made.table(
            result["against_first"],
            name="lengthgen-against-first",
            caption=f"{first['metric']} minus that of {first['against']} with the same seed: the median and an interval "
            "of order statistics that holds the population's median with the stated probability. Better or worse "
            "where the interval leaves out zero and that probability is 0.93 or more; many lines, so expect a few by "
            "chance.",
        )
    made.heading("Raw, EMA and BEMA weights")
    columns = [*SETTING, "weights", "length", "seeds", "diverged", "tv", "tv_low", "tv_high", "auc",
               "auc_pooled", "undefined", "illegal_mass", "loss"]  # fmt: skip
    kept = [c for c in columns if any(row.get(c) is not None for row in summary)]
    made.table(summary, name="lengthgen-summary", columns=kept, caption="Medians over seeds, with the range of tv.")
    made.heading("How calmly they trained")
    made.table(result["stability"], name="lengthgen-stability", caption="From the logs of all seeds.")
    made.heading("Every seed")
    made.table(result["rows"], name="lengthgen-rows", caption="One row for each run, weights and length.")
    return made


def _figure(result: dict[str, Any], metric: str, title: str) -> dict[str, Any]:
    colours = ("#4269d0", "#ff725c", "#6cc5b0", "#efb118", "#a463f2", "#97bbf5", "#9c6b4e", "#3ca951")
    traces: list[dict[str, Any]] = []
    lines: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    varies = [key for key in ("dim", "head_dim", "lr") if len({row[key] for row in result["summary"]}) > 1]
    for row in result["summary"]:
        if row["weights"] == SHOWN and row.get(metric) is not None:
            swept = [f"{key} {row[key]:g}" for key in varies]
            lines.setdefault((row["scheme"], row["fix"], row["positions"], *swept), []).append(row)
    for number, (key, points) in enumerate(lines.items()):
        label = " ".join(part for part in key if part not in ("none", "nope"))
        x, colour = [p["length"] for p in points], colours[number % len(colours)]
        band = [p[f"{metric}_high"] for p in points] + [p[f"{metric}_low"] for p in reversed(points)]
        traces.append({"x": x + x[::-1], "y": band, "fill": "toself", "mode": "none", "fillcolor": colour, "opacity": 0.15,
                       "hoverinfo": "skip", "showlegend": False})  # fmt: skip
        traces.append({"x": x, "y": [p[metric] for p in points], "name": label, "mode": "lines+markers",
                       "line": {"color": colour}})  # fmt: skip
    if metric == "tv":
        for field, label, dash in (
            ("tv", "closed form, no norm", "dot"),
            ("tv_with_norm", "closed form, norm", "dash"),
        ):
            if result["closed_form"]:
                x = [point["length"] for point in result["closed_form"]]
                y = [point[field] for point in result["closed_form"]]
                traces.append({"x": x, "y": y, "name": label, "mode": "lines", "line": {"dash": dash, "color": "#888"}})
    edge = result["config"]["train_length"]
    mark = {
        "type": "line",
        "x0": edge,
        "x1": edge,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"dash": "dash", "width": 1},
    }
    return {
        "data": traces,
        "layout": {"xaxis": {"title": {"text": "length"}}, "yaxis": {"title": {"text": title}}, "shapes": [mark]},
    }
