"""EMA and BEMA against the raw weights of the same run, where many tokens are legal and where few are."""

from __future__ import annotations

import torch

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import number
from normlab.experiments.claims.measured.trained.by_length import (
    at_length,
    mean,
    rows_of,
    seconds_of,
    settings_of,
    trained,
)
from normlab.experiments.lengthgen.presets import FOUR_TASKS, TWO_LAYER, Options
from normlab.experiments.lengthgen.result import LengthGeneralization
from normlab.training.averaging import BEMA

TV = "total variation of averaged weights"
STEPS, FEW_STEPS = 10_000, 3000
KNOBS: dict[str, Options] = {
    "every 10": {"average_every": 10},
    "every 400": {"average_every": 400},
    "every 100, eta 0.5": {"average_every": 100, "average_eta": 0.5},
}
MANY: Options = {
    "preset": "minimal", "task": "set-complement(vocab=32)", "train_length": 8, "test_lengths": (4, 8, 16), "batch": 64,
    "steps": STEPS, "schedule": "constant", "schemes": ("pre_norm",),
}  # fmt: skip


@measure("bema-many", seeds=5, seconds=60)
def many_legal(bench: Bench) -> Findings:
    """24 of 32 tokens are legal at the training length. The knobs are chosen for each seed by the other seeds."""
    found = {
        name: trained(
            bench.folder / name.replace(", ", "-").replace(" ", "-"), {**MANY, **knobs}, seeds=len(bench.seeds)
        )
        for name, knobs in KNOBS.items()
    }
    values = [
        number(TV, at_length(rows_of(next(iter(found.values())), "pre_norm"), "tv", 8), "raw"),
        number(TV, _chosen(found, "ema"), "ema"),
        number(TV, _chosen(found, "bema"), "bema"),
    ]
    values += [
        number(TV, at_length(rows_of(one, "pre_norm", kind), "tv", 8), f"{kind}, {name}")
        for name, one in found.items()
        for kind in ("ema", "bema")
    ]
    note = "At the training length. Interval and power are chosen for each seed by the mean over the other seeds."
    return Findings(values, settings_of(next(iter(found.values()))), [note], seconds_of(*found.values()))


def _chosen(found: dict[str, LengthGeneralization], kind: str) -> list[float]:
    scores = [at_length(rows_of(one, "pre_norm", kind), "tv", 8) for one in found.values()]
    picked = []
    for seed in range(len(scores[0])):
        rest = [mean([v for i, v in enumerate(values) if i != seed]) for values in scores]
        picked.append(scores[rest.index(min(rest))][seed])
    return picked


@measure("bema-few", seeds=160, seconds=5)
def few_legal(bench: Bench) -> Findings:
    """One class is the answer in maximum retrieval."""
    task = FOUR_TASKS["max-retrieval"]
    training: Options = {"steps": FEW_STEPS, "schedule": "constant", "average_every": 10}
    options = {**TWO_LAYER, **task, "schemes": ("pre_norm",), **training}
    found = trained(bench.folder, options, seeds=len(bench.seeds))
    values = [
        number(TV, at_length(rows_of(found, "pre_norm", kind), "tv", 16), kind) for kind in ("raw", "ema", "bema")
    ]
    return Findings(values, settings_of(found), ["At the training length."], seconds_of(found))


@measure("bema-memory", seeds=1, seconds=1)
def memory(bench: Bench) -> Findings:
    """BEMA's weights from the raw ones and the copies that are not derived from others."""
    theta = torch.zeros(8, dtype=torch.float64)
    average = BEMA({"theta": theta}, every=1)
    for step in range(1, 50):
        theta.add_(torch.randn(8, generator=torch.Generator().manual_seed(step), dtype=torch.float64))
        average.update(step)
    kept = {name.partition("/")[0]: t for name, t in average.tensors().items()}
    rebuilt = kept["ema"] + average.alpha(average.step) * (theta - kept["start"])
    derived = float((rebuilt - kept["bema"]).abs().max()) < 1e-12
    metric = "copies of the weights that BEMA keeps besides them"
    notes = ["Ours stores a third, BEMA's weights themselves, which follow from the two and the raw weights."]
    return Findings([number(metric, len(kept) - derived, exact=True)], {"stored": len(kept)}, notes)
