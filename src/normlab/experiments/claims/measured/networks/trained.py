"""What the layers of the shared small networks do at the end of training, net of where they began."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, curve, number
from normlab.experiments.claims.networks.models import (
    BLOCK,
    DEPTH,
    FULL,
    NO_KEY_NORM,
    POST,
    PRE,
    SEEDS,
    STEPS,
    StartAndEnd,
    model_config,
    pairs,
)  # fmt: skip
from normlab.experiments.measures import context_free_loss, prune_curve
from normlab.experiments.runs.measured import held_out
from normlab.model import Transformer
from normlab.observe.capacity import deep_over_early, gradient_against_effect, prunable_share
from normlab.observe.depth_weights import dominance, source_gradients
from normlab.observe.gradients import centre, matrix_gradients
from normlab.observe.portrait import rms, walk
from normlab.observe.readout import final_contributions, layer_shares, readouts
from normlab.observe.shape import log_slope, monotone, periodicity
from normlab.stats import gini
from normlab.tasks import Batch, Text
from normlab.training.loop import cross_entropy

PERIOD = 3  # layers: four blocks of six branches
EARLY = DEPTH // 4
BATCHES = 8
SECONDS = 60.0  # of training a seed of one arm
GROWTH = "growth of layer outputs, net of step 0"
PERIODIC = "autocorrelation of layer outputs at the block minus shorter lags, net of step 0"
GINI = "Gini of the gradient shares"
READOUT = "read-out R2 of early layers"
REMOVED = "loss added by removing a quarter of the layers"
LARGEST = "largest share of one layer in the final stream"
DEEPER = "share of the deeper half in what skipping costs"
SCALED = "weight of a source scaled by 100"


# -- one network ------------------------------------------------------------------------------------------------------
def batches(count: int, *, length: int = 32) -> list[Batch]:
    """Held-out batches of 8, the same for every network."""
    return held_out(Text(), 8 * count, 8, length)


def loss(model: Transformer, batch: Batch) -> Tensor:
    return cross_entropy(model(batch.tokens), batch, exact=False)


@torch.no_grad()
def layer_outputs(model: Transformer) -> list[float]:
    """rms of what each layer's two branches put out together, over held-out text."""
    (batch,) = held_out(Text(), 32, 32, 32)
    outputs = walk(model, lambda: model.features(batch.tokens)).outputs
    return [math.hypot(rms(outputs[i]), rms(outputs[i + 1])) for i in range(0, len(outputs), 2)]


def layer_gradients(model: Transformer) -> list[float]:
    parts = batches(BATCHES)
    return list(matrix_gradients(model, [lambda b=b: loss(model, b) for b in parts]).layers)  # type: ignore[misc]


def growth(pair: StartAndEnd) -> float:
    return log_slope(layer_outputs(pair.end)) - log_slope(layer_outputs(pair.start))


def periodic(pair: StartAndEnd) -> float:
    return periodicity(layer_outputs(pair.end), PERIOD) - periodicity(layer_outputs(pair.start), PERIOD)


def early_readout(model: Transformer) -> float:
    (batch,) = held_out(Text(), 128, 128, 32)
    return statistics.fmean(readouts(model, batch.tokens)[:EARLY])


def removed(model: Transformer) -> tuple[float, float, list[float]]:
    """(share that can go for a hundredth of what was learnt, loss added without a quarter, loss added without each)."""
    (batch,) = held_out(Text(), 64, 64, 32)
    worth = prune_curve(model, batch, loss)
    share = prunable_share(worth.curve, layers=DEPTH, floor=context_free_loss([batch]))
    return share, worth.curve[DEPTH // 4] - worth.curve[0], worth.skip


def largest_share(model: Transformer) -> float:
    (batch,) = held_out(Text(), 16, 16, 32)
    return float(layer_shares(final_contributions(model, batch.tokens), DEPTH).amax(-1).mean())


def first_over_last_quarter(norms: Sequence[float]) -> float:
    quarter = len(norms) // 4
    return sum(norms[:quarter]) / sum(norms[-quarter:])


# -- evidence ---------------------------------------------------------------------------------------------------------
class Shelf:
    """The networks of an arm, trained where they are not there yet, and what their training took."""

    def __init__(self, bench: Bench, plan: str = "models") -> None:
        self.bench, self.plan, self.seconds = bench, plan, 0.0

    def __call__(self, scheme: str) -> list[StartAndEnd]:
        folder = self.bench.folder.parent / "networks"
        found = list(pairs(folder, self.plan, scheme, seeds=self.bench.seeds))
        self.seconds += sum(pair.run.summary.seconds for pair in found)
        return found


@measure("trained-streams", seeds=SEEDS, seconds=4 * SECONDS)
def trained_streams(bench: Bench) -> Findings:
    load = Shelf(bench)
    found: list[Measurement] = []
    layers = range(1, DEPTH + 1)
    for scheme, arm in ((PRE, PRE), (BLOCK, "block_attn_res"), (FULL, FULL), (POST, POST)):
        networks = load(scheme)
        ends, starts = [layer_outputs(p.end) for p in networks], [layer_outputs(p.start) for p in networks]
        gradients = [layer_gradients(p.end) for p in networks]
        found += [
            curve("rms of layer outputs at the end", layers, ends, arm, axis="layer"),
            curve("rms of layer outputs at the start", layers, starts, arm, axis="layer"),
            number("rank correlation of depth and output rms", [monotone(row) for row in ends], arm),
            number(GROWTH, [log_slope(b) - log_slope(a) for a, b in zip(starts, ends, strict=True)], arm),
            number("growth of layer outputs at the start", [log_slope(row) for row in starts], arm),
            curve("gradient by layer at the end", layers, gradients, arm, axis="layer"),
            number("centre of the gradient shares", [centre(row) for row in gradients], arm),
            number(GINI, [gini(row) for row in gradients], arm),
            number("gradient of the first quarter over the last", [first_over_last_quarter(r) for r in gradients], arm),
            _ends(networks, arm),
        ]
        if scheme in (BLOCK, PRE):
            found.append(number(PERIODIC, [periodic(p) for p in networks], arm))
    return Findings(found, _settings(), seconds=load.seconds)


@measure("000-05", seeds=SEEDS, seconds=2 * SECONDS)
def early_layers_at_the_end(bench: Bench) -> Findings:
    load = Shelf(bench)
    found: list[Measurement] = []
    for scheme in (PRE, FULL):
        networks = load(scheme)
        found.append(number(READOUT, [early_readout(p.end) for p in networks], scheme))
        found.append(number(READOUT, [early_readout(p.start) for p in networks], f"{scheme}, step 0"))
        found.append(_ends(networks, scheme))
    depths = (6, 12, 24)
    rows = [[early_readout(_fresh(PRE, seed, depth)) for depth in depths] for seed in bench.seeds]
    found.append(curve(f"{READOUT} at the start by depth", depths, rows, PRE, axis="layers"))
    return Findings(found, {**_settings(), "early layers": EARLY, "tokens": 128 * 32}, seconds=load.seconds)


@measure("pruning", seeds=SEEDS, seconds=2 * SECONDS)
def pruning(bench: Bench) -> Findings:
    load = Shelf(bench)
    found: list[Measurement] = []
    for scheme in (PRE, POST):
        networks = load(scheme)
        rows = [removed(p.end) for p in networks]
        found += [
            _ends(networks, scheme),
            number("share of layers removable for 1 % of what was learnt", [row[0] for row in rows], scheme),
            number(REMOVED, [row[1] for row in rows], scheme),
            curve(
                "loss added by skipping a layer", range(1, DEPTH + 1), [row[2] for row in rows], scheme, axis="layer"
            ),
            number(DEEPER, [deep_over_early(row[2]) for row in rows], scheme),
        ]
    return Findings(found, _settings(), seconds=load.seconds)


@measure("gradient-and-effect", seeds=SEEDS, seconds=2 * SECONDS)
def gradient_and_effect(bench: Bench) -> Findings:
    load = Shelf(bench)
    metric = "rank correlation of a layer's gradient share and its causal effect"
    found: list[Measurement] = []
    for scheme in (PRE, POST):
        networks = load(scheme)
        gradients, costs = [layer_gradients(p.end) for p in networks], [removed(p.end)[2] for p in networks]
        values = [gradient_against_effect(g, c) for g, c in zip(gradients, costs, strict=True)]
        found += [
            number(metric, values, scheme),
            number(GINI, [gini(row) for row in gradients], scheme),
            number(DEEPER, [deep_over_early(row) for row in costs], scheme),
            _ends(networks, scheme),
        ]
    return Findings(found, _settings(), seconds=load.seconds)


@measure("final-shares", seeds=SEEDS, seconds=2 * SECONDS)
def final_shares(bench: Bench) -> Findings:
    load = Shelf(bench)
    found: list[Measurement] = []
    for scheme in (PRE, POST, FULL):
        networks = load(scheme)
        found.append(number(LARGEST, [largest_share(p.end) for p in networks], scheme))
        found.append(number(LARGEST, [largest_share(p.start) for p in networks], f"{scheme}, step 0"))
        found.append(_ends(networks, scheme))
    return Findings(found, _settings(), seconds=load.seconds)


@measure("key-norm", seeds=SEEDS, seconds=20)
def key_norm(bench: Bench) -> Findings:
    load, (batch,) = Shelf(bench, "keys"), held_out(Text(), 4, 4, 32)
    found: list[Measurement] = []
    for scheme in (FULL, NO_KEY_NORM):
        rows = [dominance(p.end, batch.tokens) for p in load(scheme)]
        found += [
            number(SCALED, [row.scaled for row in rows], scheme),
            number("weight of the same source unscaled", [row.plain for row in rows], scheme),
            number("change of a source's weight when it is scaled by 100", [row.moved for row in rows], scheme),
            number("share of sources that take nine tenths when scaled by 100", [row.dominant for row in rows], scheme),
        ]
    return Findings(found, {**_settings(), "layers": 6, "steps": 300, "scale": 100}, seconds=load.seconds)


@measure("gradient-by-source", seeds=SEEDS, seconds=SECONDS)
def gradient_by_source(bench: Bench) -> Findings:
    load, (batch,) = Shelf(bench), held_out(Text(), 8, 8, 32)
    found: list[Measurement] = []
    networks = load(FULL)
    found.append(_ends(networks, FULL))
    for arm, models in ((FULL, [p.end for p in networks]), (f"{FULL}, step 0", [p.start for p in networks])):
        rows = [source_gradients(model, batch.tokens, batch.targets) for model in models]
        found.append(number("gradient of losing sources, over that with equal weights", [r.others for r in rows], arm))
        found.append(number("gradient of the winning source, over that with equal weights", [r.top for r in rows], arm))
    return Findings(found, _settings(), seconds=load.seconds)


def _settings() -> dict[str, str | int | float | bool]:
    return {"layers": DEPTH, "dim": 32, "steps": STEPS, "batch": 8, "length": 32, "data": "the shipped text, bytes"}


def _ends(networks: Sequence[StartAndEnd], arm: str) -> Measurement:
    losses = [math.nan if pair.run.loss is None else pair.run.loss for pair in networks]
    return number("held-out loss at the end", losses, arm)


def _fresh(scheme: str, seed: int, depth: int) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Transformer(model_config(scheme, depth=depth)).eval()
