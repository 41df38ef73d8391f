"""The gains of norms, and their eps."""

from __future__ import annotations

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, verdict
from normlab.probes.judge.weights.columns import layers_of, odd_layers
from normlab.probes.measure.summary import median
from normlab.probes.measure.weights import GainRow


def gain_outlier(f: ModelEvidence) -> Verdict | None:
    found = odd_layers(f, f.readings.gains, lambda row: row.median, least=LIMITS.gain_scale)
    if not found:
        return None
    name, worst = found[0]
    title = f"the gain of {name} in layer {worst.layer} is {worst.value:.3g}, its neighbours' {worst.usual:.3g}"
    return verdict("gain_outlier", "warn", title, value=worst.value, limit=LIMITS.gain_scale, layers=layers_of(found))


def gain_pattern(f: ModelEvidence) -> Verdict | None:
    """Coordinates of one gain that stand out, have the wrong sign or are off, unlike in the layers around."""
    gains = f.readings.gains
    odd: list[tuple[GainRow, str, float]] = []
    for row in gains:
        if row.layer == 0:  # reads the embedding, whose coordinates have signs and sizes of their own
            continue
        named = [other for other in gains if other.name == row.name and other.layer != row.layer]
        same = [other for other in named if other.layer in f.alike(row.layer)]
        same = same if named else [other for other in gains if other.layer != row.layer]
        if len(same) < (3 if named else 1):
            continue
        for value, others, least, what in (
            (row.flipped, [o.flipped for o in same], LIMITS.share, "of its entries have the wrong sign"),
            (row.small, [o.small for o in same], LIMITS.share, "of its entries are zero, or nearly"),
        ):
            if value > least and value > 4 * max(sorted(others)[len(others) // 2], 0.01):
                odd.append((row, what, value))
    peaks = odd_layers(f, gains, lambda row: row.peak, least=LIMITS.gain_peak, low=False)
    if not odd and not peaks:
        return None
    if odd:
        row, what, value = max(odd, key=lambda item: item[2])
        where = f"the gain of {row.name}" + (f" in layer {row.layer}" if row.layer >= 0 else "")
        layers = tuple(sorted({item[0].layer for item in odd if item[0].layer >= 0}))
        title, limit = f"{where}: {100 * value:.0f} % {what}", LIMITS.share
    else:
        name, worst = peaks[0]
        layers, value, limit = layers_of(peaks), worst.value, LIMITS.gain_peak
        title = (
            f"one entry of the gain of {name} in layer {worst.layer} is {value:.3g} times the median entry; "
            f"in its neighbours the largest is {worst.usual:.3g} times"
        )
    return verdict("gain_pattern", "warn", title, value=value, limit=limit, layers=layers)


def reset_gain(f: ModelEvidence) -> Verdict | None:
    """A gain that never moved among gains that did: a layer that was started anew, or not loaded."""
    found = odd_layers(f, f.readings.gains, lambda row: max(row.spread, 1e-6), least=LIMITS.reset, high=False)
    found = [(name, each) for name, each in found if each.value < 1e-4]
    if not found:
        return _head_gains(f)
    layers, (name, worst) = layers_of(found), found[0]
    title = (
        f"the gain of {name} in layer {worst.layer} is the same in every coordinate; in its neighbours it varies by "
        f"{100 * worst.usual:.2g} %: {listed(layers)} may not have been trained, or not loaded"
    )
    return verdict("reset_gain", "warn", title, value=100 * worst.usual, limit=LIMITS.reset, layers=layers)


HEAD_NORMS = ("q_norm", "k_norm", "query_norm", "key_norm", "q_layernorm", "k_layernorm", "q_ln", "k_ln")


def _head_gains(f: ModelEvidence) -> Verdict | None:
    """Norms of queries or keys that no layer has trained, beside norms that were. Gains elsewhere can be folded away."""
    named = [row for row in f.readings.gains if row.name.rpartition(".")[2] in HEAD_NORMS]
    others = [row.spread for row in f.readings.gains if row.layer >= 0 and row not in named]
    usual = median(others) if others else 0.0
    if len(named) < 4 or max(row.spread for row in named) > 1e-6 or usual < LIMITS.trained:
        return None
    title = (
        f"the gains of {named[0].name} are the same in every coordinate of every layer, those of other norms vary by "
        f"{100 * usual:.2g} %: they may not have been loaded"
    )
    return verdict("reset_gain", "warn", title, value=100 * usual, limit=100 * LIMITS.trained, subject="attention")


def norm_eps(f: ModelEvidence) -> Verdict | None:
    """An eps is there against a division by zero; one that is as large as what is divided changes every token's size."""
    found = [row for row in f.readings.norms if row.eps > LIMITS.eps and row.share > LIMITS.eps_share]
    if not found:
        return None
    worst = max(found, key=lambda row: row.share)
    where = f"{worst.name} of layer {worst.layer}" if worst.layer >= 0 else worst.name
    title = f"eps = {worst.eps:g} is {100 * worst.share:.3g} % of what {where} divides by ({len(found)} norms are like this)"
    layers = tuple(sorted({row.layer for row in found if row.layer >= 0}))
    return verdict("norm_eps", "bad", title, value=100 * worst.share, limit=100 * LIMITS.eps_share, layers=layers)


RULES = (gain_outlier, gain_pattern, reset_gain, norm_eps)
