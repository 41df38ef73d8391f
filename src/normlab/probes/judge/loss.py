"""The loss itself: beside chance, beside token frequencies, beside what the model expects."""

from __future__ import annotations

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, verdict
from normlab.probes.measure.outputs import SHORT, OutputReading


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


def is_calibrated(said: OutputReading) -> bool:
    return abs(said.loss - said.entropy) <= max(LIMITS.gap, LIMITS.calibrated * said.loss)


def miscalibrated(f: ModelEvidence) -> Verdict | None:
    """A model that knows what it does not know expects about the loss that it gets."""
    said = f.readings.output
    if said is None or is_calibrated(said):
        return None
    sure = "too sure" if said.loss > said.entropy else "too unsure"
    title = f"the model is {sure} of itself: it expects a loss of {said.entropy:.2f} nats and gets {said.loss:.2f}"
    return verdict(
        "miscalibrated", "warn", title, value=said.loss, limit=max(LIMITS.gap, LIMITS.calibrated * said.loss)
    )


def is_placed(f: ModelEvidence) -> bool:
    """It has a table of positions: a piece of a window stands at other places than it did in the text."""
    ends = f.readings.embedding
    return ends is not None and ends.positions is not None


def cut_helps(said: OutputReading, *, placed: bool) -> bool:
    """With a few tokens of context alone the loss is lower; not comparable where positions are a table."""
    return said.short is not None and not placed and said.short - 2.5 * (said.short_error or 0.0) > LIMITS.short


def late_is_worse(said: OutputReading) -> bool:
    return said.early is not None and said.late is not None and said.late > said.early + LIMITS.context


def context_unused(f: ModelEvidence) -> Verdict | None:
    """More context must not hurt: neither late in a window, nor beside a text that is cut into pieces.

    A text may grow harder by itself: `rules` makes it a warning only beside a second finding.
    """
    said = f.readings.output
    if said is None:
        return None
    if cut_helps(said, placed=is_placed(f)) and said.short is not None:
        title = (
            f"context hurts: with the last {SHORT} tokens alone the loss late in a window is {said.short:.3g} nats lower "
            f"(standard error {said.short_error:.1g})"
        )
        return verdict("context_unused", "warn", title, value=said.short, limit=LIMITS.short)
    if not late_is_worse(said) or said.late is None or said.early is None:
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
