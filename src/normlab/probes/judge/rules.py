"""The rules: each looks at the findings and returns a verdict or None."""

from __future__ import annotations

import math
from dataclasses import replace

from normlab.probes.judge import rules_depth as _rules_depth  # noqa: F401  (they join the list)
from normlab.probes.judge import streams as _streams  # noqa: F401
from normlab.probes.judge.advice import advise
from normlab.probes.judge.rulebook import RULES, rule, verdict
from normlab.probes.judge.verdicts import LIMITS, SEVERITIES, Evidence, Verdict, listed, normal
from normlab.probes.measure.summary import finite, layer_gradients, median
from normlab.probes.measure.table import column, ratios
from normlab.stats import spearman


def judge(evidence: Evidence) -> tuple[Verdict, ...]:
    """All verdicts, the worst first. With NaN or infinities the other rules are silent: their numbers mean nothing."""
    first = non_finite(evidence)
    if first is not None:
        return (first,)
    found = [v for v in (check(evidence) for check in RULES) if v is not None]
    own = evidence.placement.split(",")[0]
    found.sort(key=lambda v: SEVERITIES.index(v.severity))
    return tuple(replace(v, advice=advise(v.id, own)) for v in found)


def non_finite(f: Evidence) -> Verdict | None:
    layers = tuple(row.layer for row in f.rows if (row.nonfinite or 0) > 0)
    if not layers and not f.nonfinite_weights:
        return None
    where = (
        f"weights {', '.join(f.nonfinite_weights[:3])}"
        if f.nonfinite_weights
        else f"the stream from {listed(layers[:1])}"
    )
    return verdict(
        "non_finite",
        "bad",
        f"NaN or infinity in {where}",
        float(len(f.nonfinite_weights) or len(layers)),
        0.0,
        layers,
        "none",
    )


@rule
def exploding_stream(f: Evidence) -> Verdict | None:
    rate = f.summary.exponential_rate
    if not (rate > LIMITS.explosion and f.summary.growth > 4 and len(f.rows) >= 3):
        return None
    return verdict(
        "exploding_stream",
        "bad",
        f"the stream grows by a factor {math.exp(rate):.2f} in every layer",
        math.exp(rate),
        math.exp(LIMITS.explosion),
        tuple(row.layer for row in f.rows),
        normal(lambda s: s.exponential_rate) + " (log factor)",
    )


@rule
def pre_norm_dilution(f: Evidence) -> Verdict | None:
    early, late = f.summary.early_contribution, f.summary.late_contribution
    if f.placement.startswith("post_norm") or not (late < LIMITS.dilution and late < 0.5 * early) or len(f.rows) < 4:
        return None
    quarter = tuple(row.layer for row in f.rows[-max(1, len(f.rows) // 4) :])
    return verdict(
        "pre_norm_dilution",
        "warn",
        f"late branches add {100 * late:.1f} % of the stream, early ones {100 * early:.0f} %",
        late,
        LIMITS.dilution,
        quarter,
        normal(lambda s: s.late_contribution),
    )


@rule
def gradient_imbalance(f: Evidence) -> Verdict | None:
    gradients = layer_gradients(f.rows)
    known = finite(gradients)
    if len(known) < 3:
        return None
    spread = max(known) / max(min(known), 1e-30)
    if spread <= LIMITS.gradient_spread:
        return None
    trend = spearman(list(range(len(gradients))), gradients)
    early = sum(known[: len(known) // 2]) > sum(known[(len(known) + 1) // 2 :])
    kind = "early-heavy: they grow toward the input" if early else "late-heavy: they vanish toward the input"
    worst = tuple(i for i, g in enumerate(gradients) if g <= min(known) * 2)
    return verdict(
        "gradient_imbalance",
        "bad" if spread > 100 else "warn",
        f"gradients differ {spread:.3g}-fold between layers, {kind} (rank correlation with depth {trend:+.2f})",
        spread,
        LIMITS.gradient_spread,
        worst,
        normal(lambda s: s.gradient_spread),
    )


@rule
def representation_collapse(f: Evidence) -> Verdict | None:
    robust = column(f.rows, lambda row: row.token_cosine_robust)
    layers = tuple(i for i, value in enumerate(robust) if value > LIMITS.collapse)
    if not layers:
        return None
    value = max(finite(robust))
    return verdict(
        "representation_collapse",
        "bad",
        f"tokens point the same way: mean cosine {value:.3f} in {listed(layers)}",
        value,
        LIMITS.collapse,
        layers,
        normal(lambda s: s.token_cosine_robust),
    )


@rule
def attention_dispersion(f: Evidence) -> Verdict | None:
    entropy = column(f.rows, lambda row: row.entropy)
    layers = tuple(i for i, value in enumerate(entropy) if value > LIMITS.uniform)
    exponent = f.summary.max_weight_exponent
    if len(layers) < 0.5 * max(len(finite(entropy)), 1):
        return None
    value = median([entropy[i] for i in layers])
    decay = f"; the largest weight falls as length^{exponent:.2f}" if math.isfinite(exponent) else ""
    return verdict(
        "attention_dispersion",
        "warn",
        f"attention is nearly uniform (entropy {value:.3f} of the maximum) in {listed(layers)}{decay}",
        value,
        LIMITS.uniform,
        layers,
        f"entropy {normal(lambda s: s.entropy)}; exponent {normal(lambda s: s.max_weight_exponent)}",
    )


@rule
def attention_sinks(f: Evidence) -> Verdict | None:
    masses = column(f.rows, lambda row: row.sink_mass)
    layers = tuple(i for i, value in enumerate(masses) if value > LIMITS.sink)
    if len(layers) < max(1, 0.25 * len(finite(masses))):
        return None
    value = max(finite(masses))
    place = f.rows[masses.index(value)].sink_position or 0
    return verdict(
        "attention_sinks",
        "note",
        f"up to {100 * value:.0f} % of the attention goes to position {place}, in {listed(layers)}",
        value,
        LIMITS.sink,
        layers,
        f"mean mass {normal(lambda s: s.sink_mass)}",
    )


@rule
def massive_activations(f: Evidence) -> Verdict | None:
    layers = tuple(i for i, value in enumerate(column(f.rows, lambda row: row.massive)) if value > 0)
    if not layers:
        return None
    top = max((f.rows[i] for i in layers), key=lambda row: row.max_magnitude or 0.0)
    peak = top.max_magnitude or 0.0
    ratio = peak / max(top.median_magnitude or 0.0, 1e-30)
    return verdict(
        "massive_activations",
        "note",
        f"coordinate {top.max_coordinate} reaches {peak:.3g} at position {top.max_position}, "
        f"{ratio:.2g} times the median, in {listed(layers)}",
        ratio,
        1000.0,
        layers,
        f"peak / median {normal(lambda s: s.peak_over_median)}",
    )


@rule
def dead_branches(f: Evidence) -> Verdict | None:
    found: list[tuple[int, str, float]] = []
    for kind in ("attention", "ffn"):
        sizes = ratios(f.rows, kind)
        usual = median(sizes)
        found += [
            (i, kind, r) for i, r in enumerate(sizes) if r < LIMITS.dead and (r < 0.02 * usual or usual < LIMITS.dead)
        ]
    if not found:
        return None
    text = ", ".join(f"{kind} of layer {i}" for i, kind, _ in found[:4]) + (
        f" and {len(found) - 4} more" if len(found) > 4 else ""
    )
    return verdict(
        "dead_branches",
        "bad",
        f"{len(found)} branch{'es add' if len(found) > 1 else ' adds'} nothing: {text}",
        min(r for *_, r in found),
        LIMITS.dead,
        tuple(sorted({i for i, *_ in found})),
        f"late contribution {normal(lambda s: s.late_contribution)}",
    )


@rule
def oversized_branch(f: Evidence) -> Verdict | None:
    found: list[tuple[int, str, float]] = []
    for kind in ("attention", "ffn"):
        sizes = ratios(f.rows, kind)
        usual = median(sizes)
        # Layer 0 turns a small embedding into the stream, so its ratio is large in healthy models.
        found += [
            (i, kind, r / usual)
            for i, r in enumerate(sizes)
            if i > 0 and r > 1 and usual > 0 and r > LIMITS.oversized * usual
        ]
    if not found:
        return None
    layer, kind, times = max(found, key=lambda item: item[2])
    return verdict(
        "oversized_branch",
        "warn",
        f"the {kind} of layer {layer} adds {times:.3g} times what other layers' add",
        times,
        LIMITS.oversized,
        tuple(sorted({i for i, *_ in found})),
        "below 8 times the median of its kind",
    )
