"""Was the model trained at all? Answered from the weights, so that no loss is needed."""

from __future__ import annotations

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, verdict

CONSTANT = 1e-6  # spread of a gain that no step of training has moved
NOISE = 1.15  # largest singular value, beside that of noise


def _untouched(f: ModelEvidence) -> tuple[int, int, int] | None:
    """(gains that are constant, matrices as they were drawn, matrices), or None where the layers were trained."""
    gains = [row for row in f.readings.gains if row.layer >= 0]
    moved = [row for row in gains if row.spread > CONSTANT]
    matrices = [row for row in f.readings.matrices if row.edge is not None and row.rms > 0]
    drawn = [row for row in matrices if row.edge is not None and row.edge < NOISE]
    if moved or not matrices or len(drawn) < LIMITS.untouched * len(matrices):
        return None
    return len(gains), len(drawn), len(matrices)


def _words(found: tuple[int, int, int]) -> str:
    gains, drawn, matrices = found
    norms = f"all {gains} gains of norms in the layers are constant, and " if gains else ""
    return f"{norms}{100 * drawn / matrices:.0f} % of {matrices} matrices have the singular values of noise"


def not_trained(f: ModelEvidence) -> Verdict | None:
    found, said = _untouched(f), f.readings.output
    if found is None or (said is not None and said.loss < LIMITS.frequencies * said.frequencies):
        return None
    return verdict("not_trained", "note", _words(found), value=100 * found[1] / found[2], limit=100 * LIMITS.untouched)


def frozen_layers(f: ModelEvidence) -> Verdict | None:
    """The loss says that something was learnt, the layers say that it was not they."""
    found, said = _untouched(f), f.readings.output
    if found is None or said is None or not said.loss < LIMITS.frequencies * said.frequencies:
        return None
    title = f"the layers stand at random weights though the loss is {said.loss:.3g} nats: {_words(found)}"
    layers = tuple(row.layer for row in f.rows)
    return verdict(
        "frozen_layers", "warn", title, value=100 * found[1] / found[2], limit=100 * LIMITS.untouched, layers=layers
    )


RULES = (frozen_layers, not_trained)
