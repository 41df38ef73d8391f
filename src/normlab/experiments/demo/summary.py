"""The demo for a machine: what `normlab demo --json` prints."""

from __future__ import annotations

from normlab.experiments.demo.page import answer
from normlab.experiments.demo.story import Told
from normlab.results import Plain, plain


def summary(told: Told) -> Plain:
    planted = told.planted
    return plain({
        "report": told.page,
        "answer": answer(told.atlas, told.runs, planted),
        "tuned": False,  # one rate for all, one random seed: losses are not to be ranked
        "runs": [
            {"scheme": run.scheme, "warmup": run.warmup, "lr": run.config.train.lr, "steps": run.config.train.steps,
             "ended": run.whole, "learned": run.learned, "loss": run.loss, "context_free_loss": run.floor}
            for run in told.runs
        ],
        "fault": None if planted is None else {
            "layer": planted.fault.layer, "found": planted.found, "before": planted.before.headline,
            "after": planted.after.headline,
        },
        "seconds": told.seconds,
    })  # fmt: skip
