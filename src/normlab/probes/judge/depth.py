"""Layers as a whole: what gradients reach them, and what the loss does without them."""

from __future__ import annotations

import math

from normlab.probes.judge.verdicts import LIMITS, Evidence, Verdict, listed, normal, verdict
from normlab.probes.measure.skips import SkipReport, reach
from normlab.probes.measure.summary import layer_gradients, median
from normlab.stats import spearman


def gradient_imbalance(f: Evidence) -> Verdict | None:
    """Layer 0 is left out: it turns a small embedding into the stream, and gets most of the gradient."""
    gradients = layer_gradients(f.rows)
    known = [(i, g) for i, g in enumerate(gradients) if i > 0 and math.isfinite(g) and g > 0]
    if len(known) < 3:
        return None
    sizes = [g for _, g in known]
    spread = max(sizes) / min(sizes)
    if spread <= LIMITS.gradient_spread:
        return None
    trend = spearman([float(i) for i, _ in known], sizes)
    kind = "without a trend over depth"
    if abs(trend) > LIMITS.trend:
        kind = "early-heavy: they grow toward the input" if trend < 0 else "late-heavy: they vanish toward the input"
    worst = tuple(i for i, g in known if g <= min(sizes) * 2)
    title = f"gradients differ {spread:.3g}-fold between layers, {kind} (rank correlation with depth {trend:+.2f})"
    severity = "bad" if spread > LIMITS.gradient_bad else "warn" if abs(trend) > LIMITS.trend else "note"
    usual = normal(lambda s: s.gradient_spread)
    return verdict(
        "gradient_imbalance", severity, title, value=spread, limit=LIMITS.gradient_spread, layers=worst, normal=usual
    )


def _errors(causal: SkipReport) -> list[float]:
    return [0.0 if math.isnan(error) else reach(causal.batches) * error for error in causal.error]


def harmful_layers(f: Evidence) -> Verdict | None:
    """The loss falls without the layer: it works against the others."""
    causal = f.causal
    if causal is None or not causal.learnt > 0:
        return None
    limit = max(LIMITS.harm, LIMITS.wasted * causal.learnt)
    upper = [change + error for change, error in zip(causal.change, _errors(causal), strict=True)]
    layers = tuple(i for i, value in enumerate(upper) if value < -limit)
    if not layers or len(layers) > max(1, len(upper) // 3):
        return None
    worst = min(layers, key=lambda i: causal.change[i])
    value = causal.change[worst]
    title = f"without layer {worst} the loss falls by {-value:.3g} nats, from {causal.loss:.3g}"
    usual = f"a skipped layer costs {median(causal.change):.3g} nats here (median)"
    return verdict("harmful_layers", "bad", title, value=-value, limit=limit, layers=layers, normal=usual)


def wasted_layers(f: Evidence) -> Verdict | None:
    """The loss hardly changes without the layer, in either direction."""
    causal = f.causal
    if causal is None or not causal.informative:
        return None
    limit = LIMITS.wasted * causal.learnt
    pairs = list(zip(causal.change, _errors(causal), strict=True))
    layers = tuple(i for i, (change, error) in enumerate(pairs) if change > -limit and change + error < limit)
    if not layers:
        return None
    value = min(causal.change[i] for i in layers)
    what = f"without {listed(layers)} the loss changes by less than {limit:.2g} nats each ({value:+.2g} at the least)"
    if causal.shared:  # whichever application is left out, the same model remains
        value = causal.change[0]
        what = (
            f"{len(f.rows) - 1} applications of the shared block do as well as {len(f.rows)}: the loss changes by "
            f"{value:+.2g} nats"
        )
    best = max((run for run in causal.runs if abs(run.change) < 5 * limit), key=lambda run: run.length, default=None)
    if best is not None:
        what += f"; skipping {best.length} at once ({best.first} to {best.last}) costs {best.change:+.3g}"
    usual = f"a skipped layer costs {median(causal.change):.3g} nats here (median), the loss is {causal.loss:.3g}"
    # A layer to spare is no fault: small models have some at any age.
    return verdict("wasted_layers", "note", what, value=value, limit=limit, layers=layers, normal=usual)


RULES = (harmful_layers, gradient_imbalance, wasted_layers)
