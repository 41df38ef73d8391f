"""The same measures on many seeds of one scheme: what they say where there is nothing to find."""

from __future__ import annotations

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import number
from normlab.experiments.claims.measured.networks.trained import (
    DEEPER,
    GINI,
    GROWTH,
    LARGEST,
    PERIODIC,
    READOUT,
    REMOVED,
    SCALED,
    early_readout,
    growth,
    largest_share,
    layer_gradients,
    periodic,
    removed,
)  # fmt: skip
from normlab.experiments.claims.networks.models import NO_KEY_NORM, NULL_SEEDS, PRE, StartAndEnd, pairs
from normlab.experiments.runs.measured import held_out
from normlab.observe.capacity import deep_over_early
from normlab.observe.depth_weights import dominance
from normlab.stats import gini
from normlab.tasks import Text

SEEDS = tuple(range(100, 100 + NULL_SEEDS))
SETTINGS: dict[str, str | int | float | bool] = {"layers": 12, "dim": 32, "steps": 300}


def networks(bench: Bench) -> list[StartAndEnd]:
    return list(pairs(bench.folder.parent / "networks", "null", PRE, seeds=SEEDS))


@measure("null-read-out-r2-of-early-layers", seeds=NULL_SEEDS, seconds=12)
def null_readout(bench: Bench) -> Findings:
    return Findings([number(READOUT, [early_readout(p.end) for p in networks(bench)], PRE)], SETTINGS)


@measure("null-growth-of-layer-outputs-net-of-step-0", seeds=NULL_SEEDS, seconds=12)
def null_growth(bench: Bench) -> Findings:
    return Findings([number(GROWTH, [growth(p) for p in networks(bench)], PRE)], SETTINGS)


@measure(
    "null-autocorrelation-of-layer-outputs-at-the-block-minus-shorter-lags-net-of-step-0", seeds=NULL_SEEDS, seconds=12
)
def null_periodic(bench: Bench) -> Findings:
    return Findings([number(PERIODIC, [periodic(p) for p in networks(bench)], PRE)], SETTINGS)


@measure("null-gini-of-the-gradient-shares", seeds=NULL_SEEDS, seconds=12)
def null_gini(bench: Bench) -> Findings:
    return Findings([number(GINI, [gini(layer_gradients(p.end)) for p in networks(bench)], PRE)], SETTINGS)


@measure("null-loss-added-by-removing-a-quarter-of-the-layers", seeds=NULL_SEEDS, seconds=12)
def null_removed(bench: Bench) -> Findings:
    return Findings([number(REMOVED, [removed(p.end)[1] for p in networks(bench)], PRE)], SETTINGS)


@measure("null-share-of-the-deeper-half-in-what-skipping-costs", seeds=NULL_SEEDS, seconds=12)
def null_deeper_half(bench: Bench) -> Findings:
    values = [deep_over_early(removed(p.end)[2]) for p in networks(bench)]
    return Findings([number(DEEPER, values, PRE)], SETTINGS)


@measure("null-largest-share-of-one-layer-in-the-final-stream", seeds=NULL_SEEDS, seconds=12)
def null_largest(bench: Bench) -> Findings:
    return Findings([number(LARGEST, [largest_share(p.end) for p in networks(bench)], PRE)], SETTINGS)


@measure("null-weight-of-a-source-scaled-by-100", seeds=NULL_SEEDS, seconds=4)
def null_scaled(bench: Bench) -> Findings:
    (batch,) = held_out(Text(), 4, 4, 32)
    found = pairs(bench.folder.parent / "networks", "keys-null", NO_KEY_NORM, seeds=SEEDS)
    values = [dominance(p.end, batch.tokens).scaled for p in found]
    return Findings([number(SCALED, values, NO_KEY_NORM)], {"layers": 6, "dim": 32, "steps": 60})
