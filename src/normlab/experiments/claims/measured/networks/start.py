"""Networks at their start: gradients by matrix and architecture, both ends of the seesaw, the first updates."""

from __future__ import annotations

import math
import statistics

import torch
import torch.nn.functional as F

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, curve, number
from normlab.experiments.claims.networks.models import DEPTH, POST, PRE, model_config
from normlab.model import Transformer
from normlab.observe.gradients import last_over_first
from normlab.observe.updates import first_steps
from normlab.tasks import Text
from normlab.theory.encoder_decoder import EncoderDecoderSetting, feed_forward_gradients
from normlab.theory.mean_field import MeanFieldSetting
from normlab.theory.seesaw import start
from normlab.training.optim import adamw

SHAPES = (
    EncoderDecoderSetting(encoder=6, decoder=6),
    EncoderDecoderSetting(encoder=12, decoder=12),
    EncoderDecoderSetting(encoder=12, decoder=0),
    EncoderDecoderSetting(encoder=0, decoder=12),
)
UPDATES = "update over weight in the last layer over the first, steps 1 to 10"
FIRST = "update over weight of both FFN matrices in the last layer over the first, first plain step"
RATE, STEPS = 1e-3, 10


@measure("gradients-by-matrix", seeds=20, seconds=6)
def gradients_by_matrix(bench: Bench) -> Findings:
    """W1 and W2 of the half that bears the loss, by layer, in four architectures."""
    found: list[Measurement] = []
    for scheme in (POST, PRE):
        for shape in SHAPES:
            draws = [feed_forward_gradients(scheme, shape, seed=seed) for seed in bench.seeds]
            arm = f"{scheme}, {shape.name}"
            layers = range(1, len(draws[0].up) + 1)
            for matrix, rows in (("W1", [d.up for d in draws]), ("W2", [d.down for d in draws])):
                ratios = [1 / last_over_first(row) for row in rows]
                found.append(number(f"{matrix} gradient, first layer over last", ratios, arm))
                scaled = [[norm / max(row) for norm in row] for row in rows]
                found.append(curve(f"{matrix} gradient by layer, over the largest", layers, scaled, arm, axis="layer"))
    first = SHAPES[0]
    return Findings(found, {"dim": first.dim, "heads": first.heads, "tokens": first.tokens, "init": "Xavier"})


@measure("seesaw", seeds=60, seconds=0.5)
def seesaw(bench: Bench) -> Findings:
    """Stream and W1 gradient of both placements at the start, in the setting of the mean-field theorem."""
    setting = MeanFieldSetting(dim=64, tokens=16)
    found: list[Measurement] = []
    layers = range(1, DEPTH + 1)
    for scheme in (PRE, POST):
        draws = [start(scheme, depth=DEPTH, setting=setting, seed=seed) for seed in bench.seeds]
        kept = [1 / last_over_first(draw.gradient) for draw in draws]
        found += [
            curve("rms of the stream by layer", layers, [draw.stream for draw in draws], scheme, axis="layer"),
            curve("W1 gradient by layer", layers, [draw.gradient for draw in draws], scheme, axis="layer"),
            number("W1 gradient by layer, first over last", kept, scheme),
        ]
    return Findings(found, {"layers": DEPTH, "dim": setting.dim, "tokens": setting.tokens, "mode": setting.mode})


@measure("first-updates", seeds=20, seconds=3)
def first_updates(bench: Bench) -> Findings:
    """Ten steps without warm-up: how far the last layer's matrices move, over the first layer's."""
    found: list[Measurement] = []
    for optimizer in ("adamw", "sgd"):
        for scheme in (POST, PRE):
            arm = scheme if optimizer == "adamw" else f"{scheme}, plain gradient steps"
            rows = [_updates(scheme, optimizer, seed) for seed in bench.seeds]
            found.append(number(UPDATES, [row[-1] / row[0] for row in rows], arm))
            found.append(
                curve("update over weight by layer, steps 1 to 10", range(1, DEPTH + 1), rows, arm, axis="layer")
            )
    for scheme in (POST, PRE):
        firsts = [_first_plain(scheme, seed) for seed in bench.seeds]
        found.append(number(FIRST, firsts, f"{scheme}, {SHAPES[0].name}"))
    return Findings(found, {"layers": DEPTH, "dim": 32, "rate": RATE, "warm-up": 0, "steps": STEPS})


def _first_plain(scheme: str, seed: int) -> float:
    """Xavier gives the matrices of all layers one size, so that the ratio of plain steps is that of gradients."""
    draw = feed_forward_gradients(scheme, SHAPES[0], seed=seed)
    both = [math.hypot(up, down) for up, down in zip(draw.up, draw.down, strict=True)]
    return last_over_first(both)


@measure("null-first-plain-step", seeds=24, seconds=0.5)
def null_of_first_updates(bench: Bench) -> Findings:
    rows = [_first_plain(PRE, 1000 + seed) for seed in bench.seeds]
    return Findings([number(FIRST, rows, PRE)], {"shape": SHAPES[0].name})


def _updates(scheme: str, kind: str, seed: int) -> list[float]:
    """The mean over steps of each layer's ratio."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(model_config(scheme))
    generator, task = torch.Generator().manual_seed(seed), Text()
    # Plain steps with a rate at which both schemes' first step is of the size of Adam's; the ratio of layers does not ask.
    optimizer: torch.optim.Optimizer = (
        adamw(model, lr=RATE) if kind == "adamw" else torch.optim.SGD(model.parameters(), lr=0.1)
    )

    def step() -> None:
        batch = task.sample(8, 32, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten()).backward()
        optimizer.step()

    tokens = task.held_out().sample(2, 32, torch.Generator().manual_seed(1)).tokens
    found = first_steps(model, step, tokens, steps=STEPS)
    return [statistics.fmean(column) for column in zip(*found.ratios, strict=True)]
