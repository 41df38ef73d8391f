"""Networks at their start: gradients by matrix and architecture, both ends of the seesaw, the first updates."""

from __future__ import annotations

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, curve, number
from normlab.experiments.claims.networks.models import DEPTH, POST, PRE, model_config
from normlab.model import Transformer
from normlab.observe.gradients import last_over_first, matrix_gradients
from normlab.observe.portrait import rms, walk
from normlab.observe.updates import first_steps
from normlab.schemes import parse_scheme
from normlab.tasks import Text
from normlab.theory.encoder_decoder import EncoderDecoderSetting, feed_forward_gradients
from normlab.theory.mean_field import MeanFieldSetting, build, run_branches
from normlab.training.optim import adamw

SHAPES = (
    EncoderDecoderSetting(encoder=6, decoder=6),
    EncoderDecoderSetting(encoder=12, decoder=12),
    EncoderDecoderSetting(encoder=12, decoder=0),
    EncoderDecoderSetting(encoder=0, decoder=12),
)
UPDATES = "update over weight in the last layer over the first, steps 1 to 10"
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


@measure("seesaw", seeds=20, seconds=2)
def seesaw(bench: Bench) -> Findings:
    """Stream and W1 gradient of both placements at the start, in the setting of the mean-field theorem."""
    setting = MeanFieldSetting(dim=64, tokens=16)
    found: list[Measurement] = []
    for scheme in (PRE, POST):
        streams, ups = [], []
        for seed in bench.seeds:
            stream, up = _start(scheme, setting, seed)
            streams.append(stream)
            ups.append(up)
        layers = range(1, DEPTH + 1)
        found.append(curve("rms of the stream by layer", layers, streams, scheme, axis="layer"))
        found.append(curve("W1 gradient by layer", layers, ups, scheme, axis="layer"))
        found.append(number("W1 gradient by layer, first over last", [1 / last_over_first(row) for row in ups], scheme))
    return Findings(found, {"layers": DEPTH, "dim": setting.dim, "tokens": setting.tokens, "mode": setting.mode})


def _start(scheme: str, setting: MeanFieldSetting, seed: int) -> tuple[list[float], list[float]]:
    """rms behind each layer, and the gradient of each W1, the loss being taken at every position."""
    generator = torch.Generator().manual_seed(seed)
    model = build(parse_scheme(scheme), setting, DEPTH, generator)
    x = torch.randn(1, setting.tokens, setting.dim, generator=generator, dtype=torch.float64)
    readout = torch.randn(setting.dim, setting.vocabulary, generator=generator, dtype=torch.float64) / setting.dim**0.5
    targets = torch.randint(setting.vocabulary, (setting.tokens,), generator=generator)

    def loss() -> Tensor:
        return F.cross_entropy((run_branches(model, x) @ readout).flatten(0, 1), targets)

    with torch.no_grad():
        reads = walk(model, lambda: run_branches(model, x)).reads
    return [rms(h) for h in reads[2::2]], list(matrix_gradients(model, [loss]).up)


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
    return Findings(found, {"layers": DEPTH, "dim": 32, "rate": RATE, "warm-up": 0, "steps": STEPS})


@measure("null-update-over-weight-in-the-last-layer-over-the-first-steps-1-to-10", seeds=20, seconds=0.5)
def null_of_first_updates(bench: Bench) -> Findings:
    rows = [_updates(PRE, "adamw", 1000 + seed) for seed in bench.seeds]
    return Findings([number(UPDATES, [row[-1] / row[0] for row in rows], PRE)], {"layers": DEPTH, "rate": RATE})


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
