"""The residual stream: finite, growing as it should, tokens apart, streams apart."""

from __future__ import annotations

import math
from itertools import pairwise

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, normal, verdict
from normlab.probes.measure.summary import finite, median
from normlab.probes.measure.table import column
from normlab.probes.measure.twin.compare import APART


def non_finite(f: ModelEvidence) -> Verdict | None:
    layers = tuple(row.layer for row in f.rows if (row.nonfinite or 0) > 0)
    if not layers and not f.nonfinite_weights:
        return None
    weights = f"weights {', '.join(f.nonfinite_weights[:3])}"
    where = weights if f.nonfinite_weights else f"the stream from {listed(layers[:1])}"
    count = float(len(f.nonfinite_weights) or len(layers))
    of = "parameters" if f.nonfinite_weights else "layers"
    return verdict(
        "non_finite", "bad", f"NaN or infinity in {where} ({count:g} {of})", value=count, limit=0.0, layers=layers
    )


def broken_residual(f: ModelEvidence) -> Verdict | None:
    """A layer that returns something else than the stream and its branches, as its architecture says."""
    found = f.readings.breaches
    if not found:
        return None
    worst = max(found, key=lambda breach: breach.error)
    layers = tuple(breach.layer for breach in found)
    also = f"; {listed(layers)} alike" if len(layers) > 1 else ""
    size = f"the difference is {worst.error:.2g} of the change"
    what = f"{worst.instead} ({size})" if worst.instead else size
    title = f"layer {worst.layer} breaks the residual identity: expected that {worst.expected}, but {what}{also}"
    return verdict("broken_residual", "bad", title, value=worst.error, limit=0.0, layers=layers)


def uncalled_layers(f: ModelEvidence) -> Verdict | None:
    found = f.readings.uncalled
    if not found:
        return None
    title = f"{len(found)} of {len(found) + len(f.rows)} layers are never called: {', '.join(found[:4])}"
    return verdict("uncalled_layers", "warn", title, value=float(len(found)), limit=0.0)


_DEVIATES = {  # part: (its name in a sentence, subject)
    "attention": ("attention", "attention"),
    "ffn": ("FFN", "branches"),
    "experts": ("experts", "experts"),
    "norm": ("norm", "branches"),
    "layer": ("sum", "stream"),
    "positions": ("positions", "attention"),
    "embeddings": ("embeddings", "embeddings"),
    "final_norm": ("final norm", "final_norm"),
    "head": ("head", "loss"),
    "model": ("model around its parts", "loss"),
}


def not_its_class(f: ModelEvidence) -> Verdict | None:
    """A part that returns something else than its class does with the same weights and the same input."""
    found = f.readings.twin
    if found is None or not found.places or not found.apart > APART:
        return None
    worst = max(found.places, key=lambda place: place.apart)
    alike = [place for place in found.places if place.part == worst.part]
    layers = tuple(sorted({place.layer for place in found.places if place.layer >= 0}))
    word, subject = _DEVIATES.get(worst.part, (worst.part, "stream"))
    where = f"the {word} of layer {worst.layer}" if worst.layer >= 0 else f"the {word}"
    more = f"; {len(found.places)} places in all, {len(alike)} of this kind" if len(found.places) > 1 else ""
    title = (
        f"{where} ({worst.name}) does not compute what its class does with the same weights: the difference is "
        f"{worst.apart:.3g} of the output{more}"
    )
    return verdict("not_its_class", "bad", title, value=worst.apart, limit=APART, layers=layers, subject=subject)


def coarse_arithmetic(f: ModelEvidence) -> Verdict | None:
    """The same function in coarser numbers: mixed precision around the model, or activations that are rounded."""
    coarse = f.readings.twin and f.readings.twin.coarse
    if not f.readings.twin or not coarse:
        return None
    title = (
        f"{coarse.products} matrix products are rounded to {coarse.typical:.2g} of their size (at most {coarse.worst:.2g}), "
        f"which moves what the model says by {f.readings.twin.apart:.2g}"
    )
    return verdict("coarse_arithmetic", "note", title, value=coarse.typical, limit=APART)


def batch_leaks(f: ModelEvidence) -> Verdict | None:
    """What is predicted of one text depends on another text of the batch."""
    value = f.readings.rows_apart
    if value is None or not value > APART:
        return None
    title = f"the predictions of one row change by {value:.3g} of their size when another row is in the batch"
    severity = "note" if f.readings.experts else "bad"  # experts of a limited capacity do so by design
    return verdict("batch_leaks", severity, title, value=value, limit=APART)


def _steps(f: ModelEvidence) -> list[float]:
    norms = column(f.rows, lambda row: row.norm_median)
    return [b / a if a > 0 else math.nan for a, b in pairwise(norms)]


def exploding_stream(f: ModelEvidence) -> Verdict | None:
    """Growth by a factor in nearly every layer; a single jump is another verdict."""
    rate, steps = f.summary.exponential_rate, finite(_steps(f))
    growing = sum(step > LIMITS.growing for step in steps)
    far = rate > LIMITS.explosion and f.summary.growth > LIMITS.exploded
    if not (far and len(f.rows) >= 3 and growing >= 0.7 * len(steps)):
        return None
    value = math.exp(rate)
    title = f"the stream grows by a factor of {value:.2f} per layer, in {growing} of {len(steps)} layers"
    layers = tuple(row.layer for row in f.rows)
    usual = normal(lambda s: s.exponential_rate, of="logarithm of the factor")
    return verdict(
        "exploding_stream", "bad", title, value=value, limit=math.exp(LIMITS.explosion), layers=layers, normal=usual
    )


def stream_jump(f: ModelEvidence) -> Verdict | None:
    """One layer behind which the median token is many times longer, among steps that are not."""
    steps = _steps(f)
    known = finite(steps)
    if len(known) < 3 or exploding_stream(f) is not None:
        return None
    usual = median(known)
    # Where Post-Norm layers end and Pre-Norm ones begin the stream is made anew.
    same = [not f.norms or f.norms[i] == f.norms[i + 1] for i in range(len(steps))]
    found = [i for i, step in enumerate(steps) if same[i] and step > LIMITS.jump and step > LIMITS.jump * usual]
    if not found or len(found) > 2 or found == [0]:
        return None
    layer = max(found, key=lambda i: steps[i]) + 1
    value = steps[layer - 1]
    title = f"the stream grows {value:.3g}-fold in layer {layer}; in a layer of this model it grows {usual:.3g}-fold"
    return verdict("stream_jump", "warn", title, value=value, limit=LIMITS.jump, layers=tuple(i + 1 for i in found))


def representation_collapse(f: ModelEvidence) -> Verdict | None:
    robust = column(f.rows, lambda row: row.token_cosine_robust)
    layers = tuple(i for i, value in enumerate(robust) if value > LIMITS.collapse)
    if not layers:
        return None
    value = max(finite(robust))
    title = f"tokens point the same way: mean cosine {value:.3f} in {listed(layers)}"
    usual = normal(lambda s: s.token_cosine_robust)
    return verdict(
        "representation_collapse", "bad", title, value=value, limit=LIMITS.collapse, layers=layers, normal=usual
    )


def massive_activations(f: ModelEvidence) -> Verdict | None:
    layers = tuple(i for i, value in enumerate(column(f.rows, lambda row: row.massive)) if value > 0)
    if not layers:
        return None
    top = max((f.rows[i] for i in layers), key=lambda row: row.max_magnitude or 0.0)
    peak = top.max_magnitude or 0.0
    ratio = peak / max(top.median_magnitude or 0.0, 1e-30)
    title = (
        f"coordinate {top.max_coordinate} reaches {peak:.3g} at position {top.max_position}, {ratio:.2g} times the "
        f"median, in {listed(layers)}"
    )
    usual = normal(lambda s: s.peak_over_median, of="peak / median")
    return verdict("massive_activations", "note", title, value=ratio, limit=1000.0, layers=layers, normal=usual)


def unbounded_mixing(f: ModelEvidence) -> Verdict | None:
    gains = column(f.rows, lambda row: row.composite_gain)
    layers = tuple(i for i, value in enumerate(gains) if value > LIMITS.gain)
    if not layers:
        return None
    value = max(finite(gains))
    title = (
        f"the mixing of the streams amplifies {value:.3g}-fold over depth, more than {LIMITS.gain:g}-fold from "
        f"{listed(layers[:1])} on"
    )
    usual = "1 for doubly stochastic mixing"
    return verdict("unbounded_mixing", "warn", title, value=value, limit=LIMITS.gain, layers=layers, normal=usual)


def stream_homogenisation(f: ModelEvidence) -> Verdict | None:
    alike = column(f.rows, lambda row: row.homogenisation)
    layers = tuple(i for i, value in enumerate(alike) if value > LIMITS.homogeneous)
    # Streams start as copies of the embedding, and each branch tells them apart a little: only layers behind the first
    # quarter can be judged, and a few of them are no pattern.
    judged = [i for i in range(max(1, len(alike) // 4), len(alike)) if math.isfinite(alike[i])]
    late = tuple(i for i in layers if i in judged)
    if not judged or len(late) < 0.5 * len(judged):
        return None
    value = median([alike[i] for i in late])
    title = f"the parallel streams are alike (cosine {value:.3f}) in {listed(layers)}"
    usual = "below 0.95 behind the first layers; hyper-connections start with equal streams"
    # Streams that began as copies are still alike in healthy models; a mixing that averages has a verdict of its own.
    return verdict(
        "stream_homogenisation", "note", title, value=value, limit=LIMITS.homogeneous, layers=layers, normal=usual
    )


CAUSES = (not_its_class, batch_leaks, broken_residual, uncalled_layers)
RULES = (
    exploding_stream,
    stream_jump,
    representation_collapse,
    unbounded_mixing,
    stream_homogenisation,
    massive_activations,
    coarse_arithmetic,
)
