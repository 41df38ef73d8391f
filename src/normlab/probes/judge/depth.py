"""Layers as a whole: what gradients reach them, and what the loss does without them."""

from __future__ import annotations

import math

from normlab.probes.judge.loss import cut_helps, is_calibrated, is_placed, late_is_worse
from normlab.probes.judge.outliers import outliers
from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, normal, verdict
from normlab.probes.judge.weights.columns import ROUTERS, layers_of, odd_layers
from normlab.probes.measure.outputs import OutputReading
from normlab.probes.measure.skips import SkipReport, reach
from normlab.probes.measure.summary import layer_gradients, median
from normlab.probes.measure.trials.repair import STEPS
from normlab.probes.measure.trials.run import TrialRow
from normlab.stats import spearman


def gradient_imbalance(f: ModelEvidence) -> Verdict | None:
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


def wrong_gradient(f: ModelEvidence) -> Verdict | None:
    """The last layer in front of which the gradient is not the derivative of the loss: its backward pass is wrong."""
    found = [row for row in f.readings.derivatives if row.wrong]
    if not found:
        return None
    row = found[-1]
    behind = next((other for other in f.readings.derivatives if other.layer == row.layer + 1), None)
    right = "" if behind is None else f"; in front of layer {behind.layer} by {behind.apart:.2g}"
    title = (
        f"in front of layer {row.layer} the gradient is not the derivative of the loss: the two differ by "
        f"{row.apart:.2g} of the latter{right}"
    )
    return verdict("wrong_gradient", "bad", title, value=row.apart, limit=row.limit, layers=(row.layer,))


def _errors(causal: SkipReport) -> list[float]:
    return [0.0 if math.isnan(error) else reach(causal.batches) * error for error in causal.error]


def harmful_layers(f: ModelEvidence) -> Verdict | None:
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


def wasted_layers(f: ModelEvidence) -> Verdict | None:
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


def better_changed(f: ModelEvidence) -> Verdict | None:
    """A mistake that was undone on trial: the loss falls, and the model is then as a healthy one."""
    row = next((row for row in _helpful(f) if not _still_wrong(f, row)), None)
    return None if row is None else _tried("better_changed", "bad", row, "; the model is then as a healthy one")


def helping_change(f: ModelEvidence) -> Verdict | None:
    """The loss falls with the change, and something is still wrong, or it was not tested: not the cause."""
    helpful = _helpful(f)
    if not helpful or better_changed(f) is not None:
        return None
    row = helpful[0]
    return _tried("helping_change", "note", row, f". It helps, it is not the cause: {_still_wrong(f, row)}")


def unknown_cause(f: ModelEvidence) -> Verdict | None:
    """A few steps of training regain what a trained model has no more to gain, and no change tried mends the model."""
    said, repair = f.readings.output, f.readings.repair
    if said is None or repair is None or better_changed(f) is not None:
        return None
    # In its first steps a healthy model gains much as well: it is at chance or unsure, and worse than token frequencies.
    later = said.loss < said.frequencies or (said.loss > said.entropy and not is_calibrated(said))
    least = _least_repair(said) if _is_grown(said) else LIMITS.regained if later else math.inf
    if not repair.gain > least or repair.better < 0.8 * repair.pieces:
        return None
    tested = [row for row in _helpful(f) if row.reach is not None]
    cost = max(repair.gain, *(_left(row) - row.change for row in tested), 0.0)
    harmful = harmful_layers(f)
    if harmful is not None:
        hint = harmful.title
    elif tested:
        hint = f"{tested[0].what} it falls by {-tested[0].change:.2g}, which is not the cause"
    else:
        hint = f"{STEPS} steps of training on half of the text regain as much on the other half"
    title = f"something costs at least {cost:.2g} nats, and its cause was not found; {hint}"
    return verdict("unknown_cause", "warn", title, value=cost, limit=least)


def _left(row: TrialRow) -> float:
    """What a few steps of training still gain with the change."""
    return row.undone.repair.gain if row.undone is not None and row.undone.repair is not None else 0.0


def _is_grown(said: OutputReading) -> bool:
    return said.loss <= LIMITS.grown * said.frequencies


def _tried(id: str, severity: str, row: TrialRow, then: str) -> Verdict:
    tested = f"{row.batches} windows, those that it was chosen on"
    if row.reach is not None:
        low, high = -row.change - row.reach, -row.change + row.reach
        tested = f"95 % CI {low:.2g} to {high:.2g}, {row.batches} windows that it was not chosen on"
    title = f"{row.what} the loss falls by {-row.change:.2g} nats, from {row.loss:.3g} ({tested}){then}"
    return verdict(id, severity, title, value=-row.change, limit=LIMITS.trial, layers=row.layers, subject=row.subject)


def _helpful(f: ModelEvidence) -> list[TrialRow]:
    """Trials that surely lower the loss, or would if there were windows to test them on; the largest gain first."""
    said = f.readings.output
    if said is None:
        return []
    # Blind guessing can be bettered by many changes; only one that makes a model of it had been undone before.
    least = LIMITS.frequencies * said.frequencies
    sure = [row for row in f.readings.trials if row.change + (row.reach or 0.0) < -LIMITS.trial]
    return [row for row in sure if row.loss + row.change < least]


def _still_wrong(f: ModelEvidence, row: TrialRow) -> str:
    """What is wrong, or was not examined, while the change is in place; empty if the model is then as a healthy one."""
    if row.reach is None:
        return "there are too few windows to test it on others"
    undone = row.undone
    if undone is None or undone.output is None or undone.repair is None:
        return "the model was not examined with it"
    said, gain = undone.output, undone.repair.gain
    if not _is_grown(said):
        return f"the loss is still {said.loss:.2f} nats; the frequencies of single tokens give {said.frequencies:.2f}"
    if gain > min(-LIMITS.left * row.change, max(_least_repair(said), -LIMITS.left_large * row.change)):
        return f"{STEPS} steps of training still gain {gain:.2g} nats"
    if not is_calibrated(said):
        return f"the model then expects a loss of {said.entropy:.2f} nats and gets {said.loss:.2f}"
    return "context still hurts" if cut_helps(said, placed=is_placed(f)) or late_is_worse(said) else ""


def _least_repair(said: OutputReading) -> float:
    """What a few steps of training gain in no healthy model of its kind."""
    return LIMITS.repair_masked if said.kind == "masked" else LIMITS.repair


def quickly_repaired(f: ModelEvidence) -> Verdict | None:
    """A few steps of training regain what a trained model has no more to gain."""
    said, found = f.readings.output, f.readings.repair
    if said is None or found is None or not _is_grown(said):
        return None
    limit = _least_repair(said)
    if not found.gain > limit or found.better < 0.8 * found.pieces:
        return None
    title = f"{STEPS} steps of training on half of the text lower the loss of the other half by {found.gain:.2g} nats"
    return verdict("quickly_repaired", "warn", title, value=found.gain, limit=limit)


def gradient_outlier(f: ModelEvidence) -> Verdict | None:
    """A matrix at which the loss pulls far harder than at the same one of the layers around."""
    said = f.readings.output
    if said is None or said.loss > LIMITS.grown * said.frequencies:
        return None
    matrices = {(row.layer, row.name) for row in f.readings.matrices if not row.name.endswith("bias")}
    rows = [row for row in f.readings.pulls if (row.layer, row.name) in matrices]
    # Where massive activations are made or taken back the loss pulls hard in healthy models: they have a note of their own.
    ends = _massive_ends(f)
    found = odd_layers(f, rows, lambda row: row.size, least=LIMITS.pull_outlier, low=False)
    found = [(name, each) for name, each in found if each.layer not in ends]
    if not found:
        return None
    name, worst = found[0]
    title = (
        f"the loss pulls at {name} of layer {worst.layer} with {worst.value:.3g} nats per relative change, at its "
        f"neighbours with {worst.usual:.3g}"
    )
    layers = layers_of(found)
    # One text alone may pull at one layer: a warning needs batches that agree.
    sure = f.readings.noise is not None and f.readings.noise.high < _least_noise(said)
    return verdict(
        "gradient_outlier",
        "warn" if sure else "note",
        title,
        value=worst.value,
        limit=LIMITS.pull_outlier,
        layers=layers,
    )


def _massive_ends(f: ModelEvidence) -> set[int]:
    """The layers in which massive activations appear, and those behind which they are gone."""
    massive = [(row.massive or 0.0) > 0 for row in f.rows]
    return {i for i in range(1, len(massive)) if massive[i] != massive[i - 1]} | (
        {0} if massive[:1] == [True] else set()
    )


def coherent_gradients(f: ModelEvidence) -> Verdict | None:
    """Batches agree on how to change a model that was trained: it was damaged afterwards, or the text is not of its kind."""
    said, noise = f.readings.output, f.readings.noise
    if said is None or noise is None or not noise.high < (limit := _least_noise(said)):
        return None
    steady = [0.0] * len(f.rows)
    for row in f.readings.pulls:
        if row.layer >= 0:
            steady[row.layer] += (row.steady or 0.0) ** 2
    found = (each.layer for each in outliers(steady, least=LIMITS.steady, low=False, kinds=f.kinds))
    layers = tuple(layer for layer in found if layer > 0)  # layer 0 gets most of the gradient in healthy models too
    most = _most_coherent(f)
    title = (
        f"batches agree on how to change the weights, most at {most}: at most {noise.high:.3g} targets show it"
        f"{f', above all in {listed(layers)}' if layers else ''}"
    )
    router = any(most == row.name for row in f.readings.matrices if row.name.endswith(ROUTERS))
    subject = "weights" if layers else "experts" if router else None
    return verdict("coherent_gradients", "warn", title, value=noise.high, limit=limit, layers=layers, subject=subject)


def _least_noise(said: OutputReading) -> float:
    """What healthy models have at the least, of a like loss: a young one has more to learn from every batch."""
    share = said.loss / max(said.frequencies, 1e-9)
    age = min(max((share - LIMITS.coherent_from) / (1 - LIMITS.coherent_from), 0.0), 1.0)
    if said.kind == "masked":
        return LIMITS.coherent_masked * (1 - LIMITS.coherent_fall_masked * age)
    return LIMITS.coherent * (1 - LIMITS.coherent_fall * age)


def _most_coherent(f: ModelEvidence) -> str:
    """The name of the matrix on which batches agree most, over all layers."""
    sums: dict[str, tuple[float, float]] = {}
    names = {row.name for row in f.readings.matrices if not row.name.endswith("bias")}
    for row in f.readings.pulls:
        if row.layer >= 0 and row.name in names:
            steady, size = sums.get(row.name, (0.0, 0.0))
            sums[row.name] = steady + (row.steady or 0.0) ** 2, size + (row.size or 0.0) ** 2
    return max(sums, key=lambda name: sums[name][0] / max(sums[name][1], 1e-30), default="no matrix alone")


CAUSES = (wrong_gradient,)
RULES = (
    better_changed,
    helping_change,
    unknown_cause,
    quickly_repaired,
    harmful_layers,
    gradient_outlier,
    coherent_gradients,
    gradient_imbalance,
    wasted_layers,
)
