"""The rules about layers as a whole and about several streams: copies, waste, mixing."""

from __future__ import annotations

import math

from normlab.probes.judge.rulebook import rule, verdict
from normlab.probes.judge.verdicts import LIMITS, Evidence, Verdict, listed, normal
from normlab.probes.measure.skips import reach
from normlab.probes.measure.summary import finite, median
from normlab.probes.measure.table import column


@rule
def duplicated_layers(f: Evidence) -> Verdict | None:
    if not f.duplicates:
        return None
    layers = tuple(sorted({i for twin in f.duplicates for i in (twin.layer, twin.next)}))
    return verdict(
        "duplicated_layers",
        "warn",
        f"{listed(layers)} have the same weights as a neighbour",
        max(twin.cosine for twin in f.duplicates),
        LIMITS.duplicate,
        layers,
        "cosine between the weights of neighbours near 0",
    )


@rule
def wasted_layers(f: Evidence) -> Verdict | None:
    causal = f.causal
    if not causal or not causal.informative:
        return None
    limit = LIMITS.wasted * causal.learnt
    errors = [0.0 if math.isnan(error) else error for error in causal.error]
    upper = [change + reach(causal.batches) * error for change, error in zip(causal.change, errors, strict=True)]
    layers = tuple(i for i, value in enumerate(upper) if value < limit)
    if not layers:
        return None
    what = f"without {listed(layers)} the loss changes by less than {limit:.2g} nats each"
    if causal.shared:  # whichever application is left out, the same model remains
        what = (
            f"{len(f.rows) - 1} applications of the shared block do as well as {len(f.rows)}: the loss changes by "
            f"{causal.change[0]:+.2g} nats"
        )
    cheap = [run for run in causal.runs if run.change < 5 * limit]
    best = max(cheap, key=lambda run: run.length, default=None)
    also = ""
    if best is not None:
        also = f"; skipping {best.length} at once ({best.first} to {best.last}) costs {best.change:+.3g}"
    value = min(causal.change[i] for i in layers)
    return verdict(
        "wasted_layers",
        "warn" if causal.batches > 1 else "note",  # one batch has no error bar
        what + also,
        value,
        limit,
        layers,
        f"a skipped layer costs {median(causal.change):.3g} nats here (median), the loss is {causal.loss:.3g}",
    )


@rule
def unbounded_mixing(f: Evidence) -> Verdict | None:
    gains = column(f.rows, lambda row: row.composite_gain)
    layers = tuple(i for i, value in enumerate(gains) if value > LIMITS.gain)
    if not layers:
        return None
    value = max(finite(gains))
    return verdict(
        "unbounded_mixing",
        "warn",
        f"the mixing of the streams amplifies {value:.3g}-fold over depth, more than {LIMITS.gain:g}-fold from "
        f"{listed(layers[:1])} on",
        value,
        LIMITS.gain,
        layers,
        f"1 for doubly stochastic mixing; {normal(lambda s: s.composite_gain)}",
    )


@rule
def stream_homogenisation(f: Evidence) -> Verdict | None:
    alike = column(f.rows, lambda row: row.homogenisation)
    layers = tuple(i for i, value in enumerate(alike) if value > LIMITS.homogeneous)
    # Streams start as copies of the embedding, and each branch tells them apart a little: only layers behind the first
    # quarter can be judged, and a few of them are no pattern.
    judged = [i for i in range(max(1, len(alike) // 4), len(alike)) if math.isfinite(alike[i])]
    late = tuple(i for i in layers if i in judged)
    if not judged or len(late) < 0.5 * len(judged):
        return None
    value = median([alike[i] for i in late])
    return verdict(
        "stream_homogenisation",
        "warn",
        f"the parallel streams are alike (cosine {value:.3f}) in {listed(layers)}",
        value,
        LIMITS.homogeneous,
        layers,
        f"late layers: {normal(lambda s: s.homogenisation)}; hyper-connections start with equal streams",
    )
