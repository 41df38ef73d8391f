"""K small models stacked into one program against the same K one after the other, on one thread.

A step is everything that training does but logging. `choice` is what `normlab.training.ensemble.choose` picks.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch

from benchmarks.timing import arguments, ratios, show
from normlab import Transformer, TransformerConfig
from normlab.observe.timing import interleave
from normlab.report import print_json
from normlab.tasks import task
from normlab.training import Schedule, TrainConfig, Trainer
from normlab.training.ensemble import Ensemble, choose

# models, batch, length, width, layers
SHAPES = [(8, 8, 8, 16, 2), (32, 8, 8, 16, 2), (32, 8, 8, 8, 1), (8, 32, 8, 16, 2), (8, 128, 8, 16, 2)]


class _Silent:
    def write(self, record: dict[str, Any]) -> None:
        pass


def candidates(count: int, batch: int, length: int, dim: int, depth: int) -> tuple[dict[str, Any], str]:
    ground = task("set_complement", vocab=16)
    configs = [
        TrainConfig(steps=10**6, batch=batch, length=length, seed=seed, schedule=Schedule(), log_every=10**6)
        for seed in range(count)
    ]

    def models() -> list[Transformer]:
        shape = {"vocab_size": 16, "dim": dim, "depth": depth, "heads": 2}
        return [Transformer(TransformerConfig.from_dict(shape)) for _ in range(count)]

    folder = tempfile.mkdtemp()
    stacked = Ensemble(models(), ground, configs, folder, quiet=True)
    stacked.logs = [_Silent() for _ in range(count)]  # type: ignore[misc]
    apart = [Trainer(m, ground, c, folder, quiet=True) for m, c in zip(models(), configs, strict=True)]

    def one_by_one() -> None:
        for trainer in apart:
            trainer._one()

    return {"separate": one_by_one, "stacked": stacked._one}, choose(stacked.models, configs[0]).how


def main(argv: list[str] | None = None) -> dict[str, Any]:
    given, _ = arguments(__doc__ or "").parse_known_args(argv)
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for shape in SHAPES:
        count, batch, length, dim, depth = shape
        name = f"{count} models, batch {batch}, length {length}, width {dim}, {depth} layers"
        runs, choice = candidates(*shape)
        seconds = interleave(runs, rounds=given.rounds or 9, warmup=2, what="" if given.quiet else name)
        found = ratios(seconds, "separate")
        results[name] = {**found, "choice": choice}
        if not given.quiet and not given.json:
            show(f"{name} (choice: {choice}); separate / it = how many times faster", found, "separate")
    if given.json:
        print_json(results)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
