"""The rules about several residual streams: mixings that average, gates that are shut, a stream or a head that is one."""

from __future__ import annotations

import math

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, verdict
from normlab.probes.measure.summary import finite, median
from normlab.probes.measure.table import column

BOUNDED = ("mhc", "independent_hc")  # schemes whose gates are sigmoids: reads below 1, writes below 2
STOCHASTIC = ("mhc",)  # schemes whose mixing is doubly stochastic by construction


def averaging_mixing(f: ModelEvidence) -> Verdict | None:
    keeps = column(f.rows, lambda row: row.mixing_keeps)
    layers = tuple(i for i, value in enumerate(keeps) if value < LIMITS.keeps)
    if len(layers) < 0.5 * max(1, len(finite(keeps))):
        return None
    value = median([keeps[i] for i in layers])
    return verdict(
        "averaging_mixing",
        "warn",
        f"the mixing averages the streams: it leaves {100 * value:.0f} % of their difference (second singular value) in "
        f"{listed(layers)}",
        value=value,
        limit=LIMITS.keeps,
        layers=layers,
        normal="0.99 at the start of the mHC paper; 0.1 to 0.4 where its biases were left at zero",
    )


def broken_mixing(f: ModelEvidence) -> Verdict | None:
    if f.placement not in STOCHASTIC:
        return None
    errors = column(f.rows, lambda row: row.mixing_error)
    layers = tuple(i for i, value in enumerate(errors) if value > LIMITS.mixing_error)
    if not layers:
        return None
    value = max(errors[i] for i in layers)
    return verdict(
        "broken_mixing",
        "warn",
        f"rows or columns of the mixing miss 1 by up to {value:.2g} in {listed(layers)}",
        value=value,
        limit=LIMITS.mixing_error,
        layers=layers,
        normal="below 0.02 for twenty Sinkhorn steps near the start of training",
    )


def closed_write(f: ModelEvidence) -> Verdict | None:
    gates = column(f.rows, lambda row: row.write_gate)
    layers = tuple(i for i, value in enumerate(gates) if value < LIMITS.write_gate)
    if not layers:
        return None
    value = min(gates[i] for i in layers)
    return verdict(
        "closed_write",
        "warn",
        f"the write gates of a branch are shut (mean {value:.2g}) in {listed(layers)}",
        value=value,
        limit=LIMITS.write_gate,
        layers=layers,
        normal="1 at the start; gates are between 0 and 2",
    )


def saturated_gates(f: ModelEvidence) -> Verdict | None:
    """Gates that are sigmoids and stand at their bounds: they pass no gradient, so they stay there."""
    if f.placement not in BOUNDED:
        return None
    stuck = column(f.rows, lambda row: row.stuck_gates)
    layers = tuple(i for i, value in enumerate(stuck) if value > LIMITS.stuck)
    if not layers:
        return None
    value = max(stuck[i] for i in layers)
    return verdict(
        "saturated_gates",
        "warn",
        f"{100 * value:.0f} % of the gates of a branch stand at their bounds in {listed(layers)}",
        value=value,
        limit=LIMITS.stuck,
        layers=layers,
        normal="none at the start",
    )


def dead_stream(f: ModelEvidence) -> Verdict | None:
    sizes = column(f.rows, lambda row: row.smallest_stream)
    layers = tuple(i for i, value in enumerate(sizes) if value < LIMITS.smallest_stream)
    judged = [value for value in sizes if math.isfinite(value)]
    if not judged or len(layers) < 0.5 * len(judged):
        return None
    value = median([sizes[i] for i in layers])
    return verdict(
        "dead_stream",
        "warn",
        f"one stream is nearly zero, {100 * value:.2g} % of the mean size of all, in {listed(layers)}",
        value=value,
        limit=LIMITS.smallest_stream,
        layers=layers,
        normal="streams of similar size: 50 % and more",
    )


def one_stream_head(f: ModelEvidence) -> Verdict | None:
    shares = finite(column(f.rows, lambda row: row.head_share))
    if not shares or shares[-1] < LIMITS.head_share:
        return None
    return verdict(
        "one_stream_head",
        "warn",
        f"the head reads one stream alone ({100 * shares[-1]:.0f} % of its weight)",
        value=shares[-1],
        limit=LIMITS.head_share,
        layers=(),
        normal="1/n at the start",
    )


RULES = (averaging_mixing, broken_mixing, closed_write, saturated_gates, dead_stream, one_stream_head)
