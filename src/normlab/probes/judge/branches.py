"""What branches add: nothing, too much, too little, ever less."""

from __future__ import annotations

from collections import Counter, defaultdict

from normlab.probes.judge.outliers import Outlier, outliers
from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, normal, verdict
from normlab.probes.measure.summary import contribution, median
from normlab.probes.measure.table import column, kinds, ratios
from normlab.probes.measure.weights.functions import REPEATED
from normlab.probes.trace.structure.settings import SettingRow, is_activation


def dead_branches(f: ModelEvidence) -> Verdict | None:
    found: list[tuple[int, str, float]] = []
    for kind in kinds(f.rows):
        sizes = ratios(f.rows, kind)
        usual = median(sizes)
        dead = [i for i, r in enumerate(sizes) if r < LIMITS.dead and (r < 0.02 * usual or usual < LIMITS.dead)]
        found += [(i, kind, sizes[i]) for i in dead]
    if not found:
        return None
    text = ", ".join(f"{kind.replace('_', '-')} of layer {i}" for i, kind, _ in found[:4])
    text += f" and {len(found) - 4} more" if len(found) > 4 else ""
    value = min(size for *_, size in found)
    count = f"{len(found)} branch{'es add' if len(found) > 1 else ' adds'}"
    title = f"{count} nothing: {text} (down to {value:.2g} of the stream)"
    layers = tuple(sorted({i for i, *_ in found}))
    usual_text = normal(lambda s: s.late_contribution, of="late contribution")
    return verdict("dead_branches", "bad", title, value=value, limit=LIMITS.dead, layers=layers, normal=usual_text)


def _unlike(f: ModelEvidence, *, low: bool) -> list[tuple[str, Outlier]]:
    """Branches that add more (or less) than those of the layers around, relative to the stream and in size."""
    found = []
    for kind in kinds(f.rows):
        sizes = column(f.rows, lambda row, kind=kind: b.norm if (b := row.branch(kind)) else None)  # type: ignore[misc]
        least = LIMITS.undersized if low else LIMITS.oversized
        by_ratio = outliers(ratios(f.rows, kind), least=least, low=low, high=not low, kinds=f.kinds)
        by_size = {each.layer for each in outliers(sizes, least=least**0.5, low=low, high=not low, kinds=f.kinds)}
        found += [(kind, each) for each in by_ratio if each.layer in by_size]
    return sorted(found, key=lambda item: -item[1].fold)


def oversized_branch(f: ModelEvidence) -> Verdict | None:
    # Layer 0 turns a small embedding into the stream, so its ratio is large in healthy models; so does the first layer
    # behind other norms.
    first = {0, *(i for i in range(1, len(f.norms)) if f.norms[i] != f.norms[i - 1])}
    found = [(kind, each) for kind, each in _unlike(f, low=False) if each.layer not in first]
    if not found:
        return None
    kind, worst = found[0]
    title = f"the {kind} of layer {worst.layer} adds {worst.times:.3g} times what its neighbours' add"
    layers = tuple(sorted({each.layer for _, each in found}))
    usual = f"below {LIMITS.oversized:g} times the neighbours"
    severity = "note" if f.reads_depth else "warn"
    return verdict(
        "oversized_branch", severity, title, value=worst.times, limit=LIMITS.oversized, layers=layers, normal=usual
    )


def undersized_branch(f: ModelEvidence) -> Verdict | None:
    found = _unlike(f, low=True)
    if not found:
        return None
    kind, worst = found[0]
    title = f"the {kind} of layer {worst.layer} adds {worst.times:.3g} times what its neighbours' add"
    layers = tuple(sorted({each.layer for _, each in found}))
    usual = f"above 1/{LIMITS.undersized:g} of the neighbours"
    severity = "note" if f.reads_depth else "warn"
    return verdict(
        "undersized_branch",
        severity,
        title,
        value=worst.times,
        limit=1 / LIMITS.undersized,
        layers=layers,
        normal=usual,
    )


def repeated_branch(f: ModelEvidence) -> Verdict | None:
    """Two branches that add the same to every token: one of them does not read its input."""
    found = f.readings.repeats
    if not found:
        return None
    worst = max(found, key=lambda row: row.cosine)
    layers = tuple(sorted({layer for row in found for layer in (row.layer, row.next)}))
    title = f"the {worst.kind} of {listed((worst.layer, worst.next))} add the same to every token (cosine {worst.cosine:.5f})"
    return verdict("repeated_branch", "bad", title, value=worst.cosine, limit=REPEATED, layers=layers)


def ffn_mixes_tokens(f: ModelEvidence) -> Verdict | None:
    """An FFN reads each token by itself; where most do, one that does not is wrong."""
    found = [row for row in (f.readings.tokens or ()) if row.mixing > LIMITS.token_mixing]
    layers = tuple(sorted({row.layer for row in found}))
    if not found or len(layers) > len(f.rows) / 2:
        return None
    worst = max(found, key=lambda row: row.mixing)
    title = (
        f"the FFN of layer {worst.layer} does not read each token by itself: with the tokens in reverse order its outputs "
        f"differ by {100 * worst.mixing:.3g} % ({listed(layers)})"
    )
    return verdict(
        "ffn_mixes_tokens", "bad", title, value=100 * worst.mixing, limit=100 * LIMITS.token_mixing, layers=layers
    )


def broken_norm(f: ModelEvidence) -> Verdict | None:
    """A norm that returns something else than its gain times a vector of unit RMS, though other norms here do that."""
    judged = [row for row in f.readings.norms if row.misfit is not None and row.size is not None]
    right = {row.kind for row in judged if (row.misfit or 0.0) < LIMITS.norm_misfit / 5}  # classes that we understand
    wrong = [row for row in judged if (row.misfit or 0.0) > LIMITS.norm_misfit and row.share < LIMITS.eps_share]
    # A norm that returns the usual length may be one over several streams, or over heads.
    found = [row for row in wrong if row.kind in right and not 0.67 < (row.size or 0.0) < 1.5]
    if not found:
        return None
    worst = max(found, key=lambda row: row.misfit or 0.0)
    where = f"{worst.name} of layer {worst.layer}" if worst.layer >= 0 else worst.name
    title = (
        f"{where} returns vectors {worst.size:.3g} times as long as its gain says, {100 * (worst.misfit or 0.0):.3g} % away "
        f"from its input normed ({len(found)} norms are like this)"
    )
    layers = tuple(sorted({row.layer for row in found if row.layer >= 0}))
    value, limit = 100 * (worst.misfit or 0.0), 100 * LIMITS.norm_misfit
    return verdict("broken_norm", "bad", title, value=value, limit=limit, layers=layers)


def odd_setting(f: ModelEvidence) -> Verdict | None:
    """An activation that some layers do not have, or a number (an eps, a scale) that all layers share but one inside."""
    rows: dict[str, list[SettingRow]] = defaultdict(list)
    for row in f.readings.settings or ():
        rows[row.name].append(row)
    found: list[tuple[SettingRow, str]] = []
    for named in rows.values():
        for kind in f.kinds:
            mine = [row for row in named if row.layer in kind]
            counts = Counter(row.value for row in mine)
            usual = max(counts, key=lambda value: (counts[value], is_activation(value)), default="")
            odd, count = [row for row in mine if row.value != usual], counts[usual]
            inner = len(odd) == 1 and 0 < odd[0].layer < len(f.rows) - 1
            few = len(odd) <= len(mine) / 2 if named[0].function else inner and count > 3
            found += [(row, usual) for row in odd if few]
    if not found:
        return None
    row, usual = found[0]
    layers = tuple(sorted({each.layer for each, _ in found}))
    share = f"{len(layers)} of {len(f.rows)} layers"
    title = (
        f"{row.name} is {row.value} in layer {row.layer}, and {usual} in the others ({share} differ: {listed(layers)})"
    )
    return verdict("odd_setting", "warn", title, value=float(len(layers)), limit=0.0, layers=layers)


def pre_norm_dilution(f: ModelEvidence) -> Verdict | None:
    """A property of the design, and no fault: no measurement shows yet what it costs."""
    # Layer 0 turns a small embedding into the stream: what it adds is no measure of the others.
    first = f.rows[1 : 1 + max(1, len(f.rows) // 4)]
    early, late = median([contribution(row) for row in first]), f.summary.late_contribution
    diluted = late < LIMITS.dilution and late < 0.5 * early and len(f.rows) >= 4
    if not diluted or not f.one_stream or f.placement.startswith("post_norm"):
        return None
    quarter = tuple(row.layer for row in f.rows[-max(1, len(f.rows) // 4) :])
    title = f"late branches add {100 * late:.1f} % of the stream, early ones {100 * early:.0f} % ({listed(quarter)})"
    usual = normal(lambda s: s.late_contribution)
    return verdict("pre_norm_dilution", "note", title, value=late, limit=LIMITS.dilution, layers=quarter, normal=usual)


CAUSES = (broken_norm, odd_setting, repeated_branch, ffn_mixes_tokens)
RULES = (dead_branches, oversized_branch, undersized_branch, pre_norm_dilution)
