"""All rules, by subject, in the order of causes: what is wrong with the weights explains what the stream does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from normlab.probes.judge import attention, branches, depth, embeddings, loss, stream, streams, training, weights
from normlab.probes.judge.advice import advise
from normlab.probes.judge.verdicts import SEVERITIES, ModelEvidence, Verdict

Rule = Callable[[ModelEvidence], "Verdict | None"]
# A verdict may be explained by one that stands before it.
RULES: tuple[Rule, ...] = (
    *training.RULES,
    *stream.CAUSES,
    *depth.CAUSES,
    *branches.CAUSES,
    *weights.RULES,
    *embeddings.RULES,
    *attention.RULES,
    *branches.RULES,
    *streams.RULES,
    *stream.RULES,
    *depth.RULES,
    *loss.RULES,
)
UNTRAINED = ("at_chance", "hardly_trained", "not_trained")
# What a layer does at random weights says little; that one has other weights than its neighbours does at any age.
TIMELESS = ("weights", "experts", "embeddings", "final_norm", "heads", "streams")
# Of these subjects, what a fresh model has as well.
AGE = ("unused_experts", "unsettled_weights", "embedding_scale", "norm_eps", "coherent_gradients", "quickly_repaired")
# Exact: read off the weights, the settings or two outputs that must be equal. They head the report.
FACTS = (
    "not_its_class",
    "batch_leaks",
    "broken_residual",
    "uncalled_layers",
    "broken_norm",
    "odd_setting",
    "repeated_branch",
    "ffn_mixes_tokens",
    "wrong_gradient",
    "duplicated_layers",
    "copied_matrices",
    "copied_scales",
    "copied_experts",
    "zero_weights",
    "reset_gain",
    "norm_eps",
    "positions",
    "sees_the_future",
    "wrong_mask",
    "not_deterministic",
)
# A rate that was too high, or a text that grows harder, does the same: beside nothing else they are notes.
WEAK = ("one_direction", "context_unused")
# Wrong at any age.
CERTAIN = (
    "not_its_class",
    "batch_leaks",
    "broken_residual",
    "uncalled_layers",
    "broken_norm",
    "ffn_mixes_tokens",
    "repeated_branch",
    "sees_the_future",
    "better_changed",
    "unknown_cause",
    "wrong_gradient",
)


def judge(evidence: ModelEvidence) -> tuple[Verdict, ...]:
    """All verdicts: exact facts, then a mistake that was undone on trial, then statistics, causes before symptoms.

    With NaN or infinities the other rules are silent: their numbers mean nothing. Of a model that has hardly learnt,
    most of what is said is a note: random weights are unlike trained ones in many ways.
    """
    first = stream.non_finite(evidence)
    if first is not None:
        return (first,)
    found = [verdict for verdict in (rule(evidence) for rule in RULES) if verdict is not None]
    young = {verdict.id for verdict in found} & set(UNTRAINED)
    own = evidence.placement.split(",")[0]
    told = [_finished(verdict, young, own) for verdict in found]
    accusing = [verdict.id for verdict in told if verdict.severity != "note" and verdict.id not in UNTRAINED]
    if set(accusing) - {*SYMPTOMS, *WEAK, "unknown_cause"}:  # something is known that may be the cause
        told = [verdict for verdict in told if verdict.id != "unknown_cause"]
    if not set(accusing) - set(WEAK):
        told = [replace(verdict, severity="note") if verdict.id in WEAK else verdict for verdict in told]
    return tuple(_explained(sorted(told, key=_rank)))


def _rank(verdict: Verdict) -> tuple[bool, int, int, bool, bool]:
    kind = 0 if verdict.id in FACTS else 1 if verdict.id in ("better_changed", "unknown_cause") else 2
    severity = SEVERITIES.index(verdict.severity)
    return verdict.severity == "note", kind, severity, verdict.id in SYMPTOMS, verdict.id in WEAK


def _finished(verdict: Verdict, young: set[str], own: str) -> Verdict:
    # Where the weights themselves are as they were drawn, only how streams begin can be wrong.
    timeless = ("streams",) if "not_trained" in young else TIMELESS
    always = verdict.subject in timeless and verdict.id not in AGE
    quiet = bool(young) and not always and verdict.id not in (*UNTRAINED, *CERTAIN)
    return replace(verdict, advice=advise(verdict.id, own), severity="note" if quiet else verdict.severity)


# What stands in no layer and still explains what the loss does.
WHOLE = (
    "not_its_class",
    "batch_leaks",
    "broken_residual",
    "better_changed",
    "wrong_mask",
    "sees_the_future",
    "not_deterministic",
    "norm_eps",
    "positions",
    "final_norm",
    "wrong_gradient",
)
SYMPTOMS = (
    "harmful_layers",
    "worse_than_chance",
    "worse_than_frequencies",
    "quickly_repaired",
    "miscalibrated",
    "context_unused",
    "coherent_gradients",
    "unsettled_weights",
    "gradient_imbalance",
)


def _explained(verdicts: list[Verdict]) -> list[Verdict]:
    """A symptom in the layers of a cause, or of the whole model, says so."""
    causes = [v for v in verdicts if v.severity != "note" and (v.id in WHOLE or v.subject in ("weights", "experts"))]
    cause_of = {
        verdict.id: _cause(verdict, [cause for cause in causes if cause is not verdict]) for verdict in verdicts
    }
    found: list[Verdict] = []
    for verdict in verdicts:
        cause = cause_of[verdict.id]
        for each in (verdict,) if cause is None else (cause, verdict):  # a cause stands first, however mild it is
            if each not in found:
                found.append(each)
    return [_told(verdict, cause_of[verdict.id]) for verdict in found]


def _cause(verdict: Verdict, causes: list[Verdict]) -> Verdict | None:
    if verdict.severity == "note" or verdict.id in WHOLE:
        return None
    near = [cause for cause in causes if set(cause.layers) & set(verdict.layers)]
    near = [cause for cause in near if cause.id in FACTS or verdict.id not in FACTS]
    if verdict.subject in ("weights", "experts"):  # of these only zeros explain others
        return next((c for c in near if c.id == "zero_weights" and verdict.id != "zero_weights"), None)
    whole = [cause for cause in causes if cause.id in WHOLE and verdict.id in SYMPTOMS]
    return next(iter((*near, *whole)), None)


def _told(verdict: Verdict, cause: Verdict | None) -> Verdict:
    return verdict if cause is None else replace(verdict, title=f"{verdict.title} (may follow from {cause.name})")


def headline(verdicts: tuple[Verdict, ...], *, judged: bool) -> str:
    """One line: what to look at first."""
    young = next((verdict for verdict in verdicts if verdict.id in UNTRAINED), None)
    wrong = (verdict for verdict in verdicts if verdict.severity != "note" and verdict.id not in UNTRAINED)
    first = next(wrong, None)
    if first is not None and first.id == "unknown_cause":
        return f"{first.title[0].upper()}{first.title[1:]}"
    if first is not None:
        where = f"layer {first.layers[0]}" if len(first.layers) == 1 else first.place
        return f"Look at {where}: {first.title}"
    if young is not None:
        return f"Not trained, or hardly: {young.title}"
    said = "Healthy" if judged else "No fault was seen, but the loss was not measured"
    notes = dict.fromkeys(verdict.name for verdict in verdicts)
    return f"{said}; worth knowing, no fault: {', '.join(notes)}" if notes else said
