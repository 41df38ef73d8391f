"""Writes src/normlab/probes/judge/data/gallery.json: between what bounds healthy models lie, by age.

    python tools/diagnose_gallery.py

The models are those of the clinic (`python -m tests.probes.clinic train`), of six kinds, two seeds and two sizes: random,
early (100 steps) and late (300 and 600 steps). About four minutes of one core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from normlab.files import write_json  # noqa: E402
from normlab.probes.judge.verdicts import NormalRange, NormalRanges  # noqa: E402
from normlab.probes.measure.summary import Summary, finite  # noqa: E402
from normlab.probes.measure.table import plain  # noqa: E402

TARGET = ROOT / "src/normlab/probes/judge/data/gallery.json"
AGES = {"random": (0,), "early": (100,), "late": (300, 600)}


def summaries() -> Iterator[tuple[int, Summary]]:
    import normlab as nl
    from tests.probes.clinic.backbones import MASK
    from tests.probes.clinic.runner import admit, healthy

    wanted = {age for ages in AGES.values() for age in ages}
    for backbone in healthy():
        if backbone.age in wanted:
            patient = admit(backbone)
            options = {"mask_id": MASK} if patient.kind == "encoder" else {}
            yield backbone.age, nl.diagnose(patient.model, list(patient.windows.split(8)), **options).summary


def ranges(found: Iterable[tuple[int, Summary]]) -> NormalRanges:
    """Least and largest value of every number, by age; nan where no model has it."""
    known = list(found)

    def bounds(mine: list[Summary], bound: Callable[[list[float]], float]) -> Summary:
        columns = {field.name: finite([getattr(summary, field.name) for summary in mine]) for field in fields(Summary)}
        return Summary(**{name: float(f"{bound(values):.3g}") for name, values in columns.items() if values})

    stages = {}
    for stage, ages in AGES.items():
        mine = [summary for age, summary in known if age in ages]
        stages[stage] = NormalRange(len(mine), bounds(mine, min), bounds(mine, max))
    return NormalRanges("python tools/diagnose_gallery.py", stages)


if __name__ == "__main__":
    write_json(TARGET, plain(ranges(summaries())))
