"""`nl.compare`, `nl.stability`, `nl.lengthgen`: experiments from Python, with the fields of their requests as arguments.

    found = nl.compare(schemes=["pre_norm", "block_attn_res(blocks=4)"], depths=[12], tokens=1_000_000)
    found.settings[0].answer
    found.to_html("report.html")

What is finished in the folder `out` already is only read, so a script that was stopped goes on when it is run again.
`imports` names modules with schemes of one's own, or the paths of their files: the workers import them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.compare.result import Comparison
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.lengthgen.result import LengthGeneralization
from normlab.experiments.protocol import Place, experiment, run
from normlab.experiments.request import Request
from normlab.experiments.stability.request import StabilityRequest
from normlab.experiments.stability.result import StabilityMap
from normlab.experiments.sweep import remember_origins
from normlab.plugins import import_modules
from normlab.results import Result


def compare(
    *, out: str | Path = "runs/compare", place: Place | None = None, imports: str | Sequence[str] = (), **request: Any
) -> Comparison:
    """Train every scheme at its own best learning rate, over seeds. `place` says on what; options: `CompareRequest`."""
    found = _carry_out(CompareRequest, request, place or Place(Path(out), quiet=True), imports)
    assert isinstance(found, Comparison)
    return found


def stability(
    *, out: str | Path = "runs/stability", place: Place | None = None, imports: str | Sequence[str] = (), **request: Any
) -> StabilityMap:
    """How high the learning rate may go, for each warm-up, scheme and depth. Options: `StabilityRequest`."""
    found = _carry_out(StabilityRequest, request, place or Place(Path(out), quiet=True), imports)
    assert isinstance(found, StabilityMap)
    return found


def lengthgen(
    *, out: str | Path = "runs/lengthgen", place: Place | None = None, imports: str | Sequence[str] = (), **request: Any
) -> LengthGeneralization:
    """Train on short inputs, score on long ones. Options: `LengthgenRequest`."""
    found = _carry_out(LengthgenRequest, request, place or Place(Path(out), quiet=True), imports)
    assert isinstance(found, LengthGeneralization)
    return found


def _carry_out(kind: type[Request], values: dict[str, Any], place: Place, imports: str | Sequence[str]) -> Result:
    named = [imports] if isinstance(imports, str) else imports
    where = replace(place, out=Path(place.out), imports=(*place.imports, *named))
    import_modules(where.imports)
    remember_origins(where.out)
    request = kind(**values)
    found = run(request, where)
    experiment(request.kind).write(found, where.out)
    return found
