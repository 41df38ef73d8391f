"""Our own schemes, each trained a little as its authors run it: healthy models, many of whose residual is no plain sum.

They are run folders of `normlab compare`, and are diagnosed as a user would: by the folder's name. 103 runs, about 40
minutes of one core, kept in the clinic's cache under a digest of what was asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.executors.here import HereExecutor
from normlab.experiments.protocol import experiment
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.sweep import Sweep, read_runs

from .backbones import cache

BATCH, LENGTH = 8, 64
DEEP = ("block_attn_res", "pre_norm", "attn_res", "mhc")  # as the demo trains them


@dataclass(frozen=True)
class Own:
    """One trained model of ours."""

    folder: Path
    scheme: str
    depth: int
    steps: int
    loss: float

    @property
    def name(self) -> str:
        return f"{self.scheme}, {self.depth} layers"


def requests() -> tuple[CompareRequest, ...]:
    """Every scheme in 6 and in 12 layers with its own recipe, four in 16 layers with the demo's.

    Rules were made with these in view. Those of 8 layers came after the rules, and are narrower and trained for longer.
    """
    return (
        _request(("all",), depth=6, steps=400, recipe="authors"),
        _request(("all",), depth=12, steps=400, recipe="authors"),
        _request(DEEP, depth=16, steps=300, recipe="shared"),
        _request(("all",), depth=8, steps=500, recipe="authors", dim=48),
    )


def _request(schemes: tuple[str, ...], *, depth: int, steps: int, recipe: str, dim: int = 64) -> CompareRequest:
    measure = HeldOut(
        validations=2, curve_sequences=8, sequences=32, layers=(), layer_sequences=4, gradient_batches=1, prune=False
    )
    return CompareRequest(
        schemes=schemes, depths=(depth,), dim=dim, heads=4, batch=BATCH, length=LENGTH, tokens=BATCH * LENGTH * steps,
        seeds=1, lrs=(3e-3,), extend=0, recipe=recipe, measure=measure, start="old",
    )  # fmt: skip


def place(request: CompareRequest) -> Path:
    key = hashlib.sha256((request.model_dump_json() + torch.__version__).encode()).hexdigest()[:12]
    return cache() / "own" / f"{request.depths[0]}-layers-{key}"


def trained(request: CompareRequest) -> Path:
    """The folder with all runs of a request; what is there already is not run again."""
    asked, sweep = experiment("compare"), Sweep(place(request), HereExecutor(None), quiet=True)
    settled = sweep.settle(request, lambda: asked.settle(request, sweep.executor))
    wave = asked.plan(request, settled, 0, sweep.folder)
    if wave is not None:
        sweep.run(wave.runs, what=wave.what)
    return sweep.folder


def everyone() -> Iterator[Own]:
    for request in requests():
        for run in read_runs(trained(request)):
            if run.loss is not None:
                model, steps = run.config.model, run.config.train.steps
                yield Own(run.folder, model.scheme.name, model.depth, steps, run.loss)
