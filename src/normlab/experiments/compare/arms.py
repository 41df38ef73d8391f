"""What a comparison trains: schemes at depths and, with the authors' recipes, Pre-Norm with each of their starts.

A scheme that its authors start otherwise differs from Pre-Norm in two things. Its control differs from Pre-Norm in the
second alone: same embedding, same matrices, same norm on q and k, same weight decay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.shapes import run_name
from normlab.schemes.names import label, parse_scheme
from normlab.schemes.recipes import FAIR, recipe_name

REFERENCE = "pre_norm"


@dataclass(frozen=True, order=True)
class Arm:
    """A scheme at a depth. `start_of`: of a control, the name of the recipe that Pre-Norm takes."""

    scheme: str
    depth: int
    start_of: str = ""

    @classmethod
    def of(cls, config: RunConfig) -> Arm:
        """Of a run, from what its config.yaml says."""
        scheme, recipe = config.model.scheme, config.recipe_of
        control = scheme.name == REFERENCE and recipe is not None and recipe != recipe_name(scheme)
        return cls(label(scheme), config.model.depth, recipe if control and recipe else "")

    @property
    def label(self) -> str:
        """In tables and sentences."""
        if not self.start_of:
            return self.scheme
        whose = FAIR if self.start_of == FAIR else f"{self.start_of}'s"
        return f"{self.scheme} @ {whose} start"

    @property
    def recipe(self) -> str:
        """The name of the recipe that it takes where each takes its authors'."""
        return self.start_of or recipe_name(parse_scheme(self.scheme))

    def run(self, lr: float, seed: int) -> str:
        """The folder of one of its runs."""
        return run_name(f"{self.scheme}@{self.start_of}" if self.start_of else self.scheme, self.depth, lr, seed)


def arms(request: CompareRequest) -> list[Arm]:
    """Everything that a request trains."""
    return [arm for depth in request.depths for arm in (*_schemes(request, depth), *_controls(request, depth))]


def _schemes(request: CompareRequest, depth: int) -> Iterator[Arm]:
    for scheme in request.schemes:
        yield Arm(scheme, depth)


def _controls(request: CompareRequest, depth: int) -> Iterator[Arm]:
    """One for each start that is not that of an arm of Pre-Norm already."""
    if not request.has_controls:
        return
    starts = dict.fromkeys(arm.recipe for arm in _schemes(request, depth) if arm.scheme != REFERENCE)
    own = Arm(REFERENCE, depth).recipe
    for start in starts:
        if start != own:
            yield Arm(REFERENCE, depth, start)
        elif REFERENCE not in request.schemes:
            yield Arm(REFERENCE, depth)
