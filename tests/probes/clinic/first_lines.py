"""The first lines of 60 cases drawn from the unseen and the fifth half, and of healthy models: what a reader sees first.

    python -m tests.probes.clinic.first_lines FOLDER [--max-seconds 300]   diagnose; what is there already is not run again
    python -m tests.probes.clinic.first_lines FOLDER --show                print case, what was planted, first line

`first_lines.csv` holds the lines of 541c4aa and of 2026-11-19, and the grade that a reader gave each, in random order and
without knowing which version had written it:
right (it leads to the part that was damaged), partly (one of its layers or its kind), wrong (to another cause), no cause
(it says that something is wrong and names nothing), not noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import normlab as nl
from normlab.errors import NormlabError
from normlab.files import write_json

from .backbones import MASK, Backbone, held_out_loss, run_of
from .protocol import CAUSAL, Patient
from .runner import Case, Dressed, Stopwatch, admit, cases, dress, dressed, plant

SEED, CASES, DRESSED = 29, 60, 18
HALVES = ("unseen", "fifth")
Exam = Case | Dressed | Backbone


def drawn() -> list[Case]:
    """The cases of the exam, by a fixed random seed."""
    return random.Random(SEED).sample([case for half in HALVES for case in cases(half)], CASES)


def healthy() -> Iterator[Dressed | Backbone]:
    """Twelve trained models, six younger ones, and variants of the two halves."""
    kinds = (*CAUSAL, "encoder")
    yield from (Backbone(run_of(kind, seed=seed)) for kind in kinds for seed in (0, 1))
    yield from (Backbone(run_of(kind, seed=place % 2), 300) for place, kind in enumerate(kinds))
    yield from random.Random(SEED).sample(list(dressed(HALVES)), DRESSED)


def examined(exam: Exam) -> dict[str, object]:
    """The first line, what was planted, and the whole diagnosis beside it."""
    patient, what, layers, loss = _admitted(exam)
    options = {"mask_id": MASK} if patient.kind == "encoder" else {}
    start = time.perf_counter()
    row: dict[str, object] = {
        "name": exam.name,
        "sick": isinstance(exam, Case),
        "what": what,
        "layers": layers,
        "loss_change": loss - held_out_loss(admit(patient.backbone).model, patient.kind),
    }
    try:
        diagnosis = nl.diagnose(patient.model, list(patient.windows.split(8)), **options)
    except NormlabError as error:
        return {**row, "line": f"refused: {error}", "seconds": time.perf_counter() - start}
    accused = any(verdict.severity != "note" for verdict in diagnosis.verdicts)
    seconds = time.perf_counter() - start
    return {**row, "line": diagnosis.headline, "accused": accused, "seconds": seconds, "diagnosis": diagnosis.to_dict()}


def _admitted(exam: Exam) -> tuple[Patient, str, tuple[int, ...], float]:
    if isinstance(exam, Case):
        patient, planted, loss = plant(exam)
        return patient, planted.what, planted.layers, loss
    if isinstance(exam, Dressed):
        patient, loss = dress(exam)
        return patient, "", (), loss
    patient = admit(exam)
    return patient, "", (), held_out_loss(patient.model, patient.kind)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--max-seconds", type=float)
    parser.add_argument("--only", type=lambda text: set(map(int, text.split(","))), help="numbers of exams: 9,12")
    parser.add_argument("--show", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    watch, left = Stopwatch(chosen.max_seconds), 0
    for number, exam in enumerate((*drawn(), *healthy())):
        if chosen.only and number not in chosen.only:
            continue
        path = chosen.folder / f"{number:03}.json"
        if chosen.show and path.exists():
            row = json.loads(path.read_text())
            print(
                f"{number:03} {row['name']} | {row['what']} {row['layers'] or ''} {row['loss_change']:+.2f} | {row['line']}"
            )
        elif path.exists() or chosen.show:
            continue
        elif watch.over:
            left += 1
        else:
            write_json(path, examined(exam))
    print(f"{left} left", file=sys.stderr)
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
