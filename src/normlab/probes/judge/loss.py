"""The loss itself: beside chance, beside token frequencies, beside what the model expects."""

from __future__ import annotations

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, verdict
from normlab.probes.measure.outputs import SHORT


def worse_than_chance(f: ModelEvidence) -> Verdict | None:
    """A model that knows nothing scores chance; to do worse it must be sure of wrong answers."""
    said = f.readings.output
    if said is None or not said.chance or not said.loss > LIMITS.worse * said.chance:
        return None
    title = f"the loss is {said.loss:.2f} nats; guessing blindly would give {said.chance:.2f}"
    return verdict("worse_than_chance", "bad", title, value=said.loss, limit=LIMITS.worse * said.chance)


def at_chance(f: ModelEvidence) -> Verdict | None:
    said = f.readings.output
    if said is None or not said.chance or not LIMITS.chance * said.chance < said.loss <= LIMITS.worse * said.chance:
        return None
    title = f"the loss is {said.loss:.2f} nats, which is blind guessing ({said.chance:.2f})"
    return verdict("at_chance", "warn", title, value=said.loss, limit=LIMITS.chance * said.chance)


def hardly_trained(f: ModelEvidence) -> Verdict | None:
    said = f.readings.output
    if said is None or (said.chance and said.loss > LIMITS.chance * said.chance):
        return None
    limit = LIMITS.frequencies * said.frequencies
    # A broken model is sure of wrong answers; a young one is unsure.
    if not said.loss > limit or said.loss - said.entropy > LIMITS.calibrated * said.loss:
        return None
    title = f"the loss is {said.loss:.2f} nats; the frequencies of single tokens alone give {said.frequencies:.2f}"
    return verdict("hardly_trained", "note", title, value=said.loss, limit=limit)


def worse_than_frequencies(f: ModelEvidence) -> Verdict | None:
    """Sure of wrong answers: a young model that has not got so far yet is unsure (`hardly_trained`)."""
    said = f.readings.output
    if said is None or (said.chance and said.loss > LIMITS.chance * said.chance):
        return None
    limit = LIMITS.frequencies * said.frequencies
    if not said.loss > limit or said.loss - said.entropy <= LIMITS.calibrated * said.loss:
        return None
    title = (
        f"the loss is {said.loss:.2f} nats, the frequencies of single tokens alone give {said.frequencies:.2f}, and the "
        f"model is sure of itself (it expects {said.entropy:.2f})"
    )
    return verdict("worse_than_frequencies", "warn", title, value=said.loss, limit=limit)


def miscalibrated(f: ModelEvidence) -> Verdict | None:
    """A model that knows what it does not know expects about the loss that it gets."""
    said = f.readings.output
    if said is None:
        return None
    gap = said.loss - said.entropy
    if not abs(gap) > max(LIMITS.gap, LIMITS.calibrated * said.loss):
        return None
    sure = "too sure" if gap > 0 else "too unsure"
    title = f"the model is {sure} of itself: it expects a loss of {said.entropy:.2f} nats and gets {said.loss:.2f}"
    return verdict(
        "miscalibrated", "warn", title, value=said.loss, limit=max(LIMITS.gap, LIMITS.calibrated * said.loss)
    )


def context_unused(f: ModelEvidence) -> Verdict | None:
    """More context must not hurt: neither late in a window, nor beside a text that is cut into pieces."""
    said, ends = f.readings.output, f.readings.embedding
    # A piece stands at other places of a table of positions than it did in the text: there the two cannot be compared.
    placed = ends is not None and ends.positions is not None
    if (
        said is not None
        and said.short is not None
        and not placed
        and said.short - 2.5 * (said.short_error or 0.0) > LIMITS.short
    ):
        title = (
            f"context hurts: with the last {SHORT} tokens alone the loss late in a window is {said.short:.3g} nats lower "
            f"(standard error {said.short_error:.1g})"
        )
        return verdict("context_unused", "warn", title, value=said.short, limit=LIMITS.short)
    if said is None or said.early is None or said.late is None or not said.late > said.early + LIMITS.context:
        return None
    title = f"context hurts: {said.late:.2f} nats late in a window, {said.early:.2f} at its beginning"
    return verdict("context_unused", "warn", title, value=said.late, limit=said.early + LIMITS.context)


def not_deterministic(f: ModelEvidence) -> Verdict | None:
    said = f.readings.output
    if said is None or said.repeat is None or not said.repeat > LIMITS.repeat:
        return None
    title = f"two passes over the same text differ by {100 * said.repeat:.3g} %: dropout or noise is on"
    return verdict("not_deterministic", "bad", title, value=100 * said.repeat, limit=100 * LIMITS.repeat)


RULES = (
    not_deterministic,
    worse_than_chance,
    worse_than_frequencies,
    miscalibrated,
    context_unused,
    at_chance,
    hardly_trained,
)
