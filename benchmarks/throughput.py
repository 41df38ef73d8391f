"""What a comparison's cell costs: its training step against a loop written by hand, and two cells on two cores.

(a) Everything that a cell does in a step (draw a batch, schedule, forward, backward, clip, AdamW, averages) against the
    least PyTorch that trains the same model on the same text.
(b) Two single-threaded cells at once against one alone: 2 would be perfect.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.model import HandWritten, Shape
from benchmarks.timing import arguments, ratios, show
from normlab.experiments.executors.local import LocalExecutor
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import prepare
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.runs.trainer import RunTrainer
from normlab.model import TransformerConfig
from normlab.observe.timing import interleave
from normlab.report import print_json
from normlab.tasks import Text
from normlab.training import Schedule, TrainConfig

OURS = "normlab's cell"
SHAPES = {
    "24 layers, width 64 (the demo)": Shape(depth=24, dim=64, heads=4, length=64, batch=8, vocab=256),
    "12 layers, width 256": Shape(depth=12, dim=256, heads=4, length=128, batch=4, vocab=256),
}
LR = 1e-3


def cell(shape: Shape, *, steps: int = 10_000, seed: int = 0) -> RunConfig:
    return RunConfig(
        model=TransformerConfig(
            vocab_size=shape.vocab, dim=shape.dim, depth=shape.depth, heads=shape.heads, ffn_dim=shape.hidden
        ),
        task=Text(),
        train=TrainConfig(
            steps=steps, batch=shape.batch, length=shape.length, lr=LR, seed=seed, schedule=Schedule(warmup=1),
            checkpoint_every=10_000, log_every=1000,
        ),
        score=HeldOut(validations=1, curve_sequences=1, sequences=1, layers=(), prune=False),
    )  # fmt: skip


def by_hand(shape: Shape) -> Callable[[], None]:
    """A training loop in nanoGPT's manner: decayed matrices, fused AdamW, clipping at 1, a linear schedule."""
    model, data = HandWritten(shape), Text().stream
    draws = torch.Generator().manual_seed(0)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    gains = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        for group in optimizer.param_groups:
            group["lr"] = LR * (1 - taken / 10_000)
        start = torch.randint(len(data) - shape.length, (shape.batch, 1), generator=draws)
        window = data[start + torch.arange(shape.length + 1)]
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


def steps_against_hand(rounds: int, quiet: bool) -> dict[str, Any]:
    found = {}
    for title, shape in SHAPES.items():
        config = cell(shape)
        trainer = RunTrainer(config.build(), config, Path("."))  # `run` is not called: nothing is written
        trainer.model.train()
        candidates = {OURS: lambda trainer=trainer: trainer._one(), "by hand": by_hand(shape)}
        seconds = interleave(candidates, rounds=rounds, what="" if quiet else title)
        found[title] = ratios(seconds, OURS)
        found[title]["by hand"]["throughput"] = 1 / found[title]["by hand"]["ratio"]
        if not quiet:
            show(title, found[title], OURS)
    return found


def two_cells_on_two_cores(rounds: int, quiet: bool, *, steps: int = 15) -> dict[str, float]:
    """2 x (time of one alone) / (time of two at once), the median over rounds that alternate."""
    shape = SHAPES["24 layers, width 64 (the demo)"]
    with tempfile.TemporaryDirectory() as folder, LocalExecutor(workers=1) as one, LocalExecutor(workers=2) as two:

        def timed(executor: LocalExecutor, tag: str) -> float:
            config = cell(shape, steps=steps)
            names = [prepare(Path(folder) / f"{tag}-{i}", config) for i in range(executor.workers)]
            begun = time.perf_counter()
            for outcome in executor.run(names):
                assert outcome.error is None, outcome.error
            return time.perf_counter() - begun

        for executor in (one, two):
            timed(executor, f"warm-{executor.workers}")
        gains = [2 * timed(one, f"one-{k}") / timed(two, f"two-{k}") for k in range(rounds)]
    result = {"two_cells": statistics.median(gains), "low": min(gains), "high": max(gains)}
    if not quiet:
        print(f"two cells on two cores do {result['two_cells']:.2f} times the work of one "
              f"({result['low']:.2f} to {result['high']:.2f} over {rounds} rounds)")  # fmt: skip
    return result


def main(argv: list[str] | None = None) -> dict[str, Any]:
    given, _ = arguments(__doc__.splitlines()[0]).parse_known_args(argv)  # type: ignore[union-attr]
    torch.set_num_threads(1)
    quiet = given.quiet or given.json
    results = {
        "step": steps_against_hand(given.rounds or 15, quiet),
        "cores": two_cells_on_two_cores(min(given.rounds or 7, 7), quiet),
    }
    if given.json:
        print_json(results)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
