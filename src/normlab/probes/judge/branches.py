"""What branches add: nothing, too much, too little, ever less."""

from __future__ import annotations

from normlab.probes.judge.outliers import Outlier, outliers
from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, normal, verdict
from normlab.probes.measure.summary import median
from normlab.probes.measure.table import column, kinds, ratios


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
    # Layer 0 turns a small embedding into the stream, so its ratio is large in healthy models.
    found = [(kind, each) for kind, each in _unlike(f, low=False) if each.layer > 0]
    if not found:
        return None
    kind, worst = found[0]
    title = f"the {kind} of layer {worst.layer} adds {worst.times:.3g} times what its neighbours' add"
    layers = tuple(sorted({each.layer for _, each in found}))
    usual = f"below {LIMITS.oversized:g} times the neighbours"
    return verdict(
        "oversized_branch", "warn", title, value=worst.times, limit=LIMITS.oversized, layers=layers, normal=usual
    )


def undersized_branch(f: ModelEvidence) -> Verdict | None:
    found = _unlike(f, low=True)
    if not found:
        return None
    kind, worst = found[0]
    title = f"the {kind} of layer {worst.layer} adds {worst.times:.3g} times what its neighbours' add"
    layers = tuple(sorted({each.layer for _, each in found}))
    usual = f"above 1/{LIMITS.undersized:g} of the neighbours"
    return verdict(
        "undersized_branch", "warn", title, value=worst.times, limit=1 / LIMITS.undersized, layers=layers, normal=usual
    )


def pre_norm_dilution(f: ModelEvidence) -> Verdict | None:
    early, late = f.summary.early_contribution, f.summary.late_contribution
    if f.placement.startswith("post_norm") or not (late < LIMITS.dilution and late < 0.5 * early) or len(f.rows) < 4:
        return None
    quarter = tuple(row.layer for row in f.rows[-max(1, len(f.rows) // 4) :])
    title = f"late branches add {100 * late:.1f} % of the stream, early ones {100 * early:.0f} % ({listed(quarter)})"
    usual = normal(lambda s: s.late_contribution)
    return verdict("pre_norm_dilution", "warn", title, value=late, limit=LIMITS.dilution, layers=quarter, normal=usual)


RULES = (dead_branches, oversized_branch, undersized_branch, pre_norm_dilution)
