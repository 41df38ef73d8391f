"""Folders of runs as another process would leave them."""

import json

from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import prepare
from normlab.files import write_json
from normlab.model import TransformerConfig
from normlab.store import seal
from normlab.tasks import task
from normlab.training import TrainConfig


def config(scheme="pre_norm", steps=100):
    model = TransformerConfig(vocab_size=4, dim=8, depth=2, heads=2, scheme=scheme)
    return RunConfig(model=model, task=task("tomita", number=4), train=TrainConfig(steps=steps, batch=2, length=8))


def record(step, loss=2.0):
    return {"kind": "train", "step": step, "loss": loss, "grad_norm": 1.0, "lr": 1e-3, "seconds": 0.1 * step}


def layers(step):
    return {"kind": "layers", "step": step, "magnitude": [1.0, 2.0, 3.0, 4.0, 5.0], "contribution": [1.0, 0.5, 0.2, 0.1],
            "gradient_share": [0.7, 0.3]}  # fmt: skip


def write(folder, records, *, steps=100, scheme="pre_norm", status=None):
    prepare(folder, config(scheme, steps))
    add(folder, records)
    if status is not None:
        write_json(folder / "summary.json", seal({"status": status, "step": steps}))


def add(folder, records):
    with open(folder / "log.jsonl", "a") as file:
        file.write("".join(json.dumps(each) + "\n" for each in records))
