"""The only place that calls `nl.diagnose` and reads what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import normlab as nl
from normlab.errors import NormlabError
from normlab.probes.diagnosis import Diagnosis

from .backbones import MASK
from .protocol import Accusation, Exam, Patient

ACCUSING = ("bad", "warn", "fault", "warning")
# Said of a model that has not learnt enough to be judged: right for a young one, wrong for a grown healthy one.
UNTRAINED = ("hardly_trained", "not_trained", "not_judged", "at_chance")
# Verdicts that carry no subject of their own.
SUBJECT_OF = {
    "non_finite": "weights",
    "exploding_stream": "stream",
    "pre_norm_dilution": "branches",
    "gradient_imbalance": "gradients",
    "representation_collapse": "stream",
    "attention_dispersion": "attention",
    "attention_sinks": "attention",
    "massive_activations": "stream",
    "dead_branches": "branches",
    "oversized_branch": "branches",
    "duplicated_layers": "weights",
    "wasted_layers": "causal",
    "unbounded_mixing": "stream",
    "stream_homogenisation": "stream",
}


def examine(patient: Patient) -> Exam:
    """Diagnose a patient as a user would."""
    options = {"mask_id": MASK} if patient.kind == "encoder" else {}
    return _exam(lambda: nl.diagnose(patient.model, list(patient.windows.split(8)), **options))


def examine_folder(folder: Path) -> Exam:
    """Diagnose a run of ours by the name of its folder."""
    return _exam(lambda: nl.diagnose(str(folder)))


def _exam(diagnose: Callable[[], Diagnosis]) -> Exam:
    """A refusal or a crash is an exam without accusations."""
    start = time.perf_counter()
    try:
        found = diagnose()
    except NormlabError as error:
        return Exam(refused=f"refused: {error}", seconds=time.perf_counter() - start)
    except Exception as error:  # a crash is a finding about diagnose, not about the clinic
        return Exam(refused=f"crashed: {type(error).__name__}: {error}", seconds=time.perf_counter() - start)
    seconds = time.perf_counter() - start
    said = [
        Accusation(
            verdict=verdict.id,
            subject=str(getattr(verdict, "subject", "") or SUBJECT_OF.get(verdict.id, verdict.id)),
            layers=tuple(verdict.layers),
            severity=verdict.severity,
        )
        for verdict in found.verdicts
    ]
    untrained = tuple(item for item in said if item.verdict in UNTRAINED)
    accusing = tuple(item for item in said if item.severity in ACCUSING and item.verdict not in UNTRAINED)
    return Exam(accusing, untrained, seconds=seconds)
