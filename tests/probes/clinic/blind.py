"""A third half, written blind: by somebody who had read neither the rules nor what they said before.

It was run once (2026-11-18, 69 % found) and is spent: its misses were read and rules were made on them, as on the others.

Labs' accidents, and healthy models in other clothes (`VARIANTS`). Strengths are drawn from a range, places by chance; both
were chosen by what they do to the loss alone.
"""

from __future__ import annotations

from .backbones import KINDS, Run, run_of
from .blind_faults import (
    adapters,
    cuts,
    ends,
    experts,
    gains,
    grids,
    healthy,
    mixtures,
    order,
    projections,
    steps,
)
from .blind_faults.tools import Variant
from .protocol import Fault

FAULTS: tuple[Fault, ...] = (
    *projections.FAULTS,
    *order.FAULTS,
    *gains.FAULTS,
    *grids.FAULTS,
    *adapters.FAULTS,
    *steps.FAULTS,
    *cuts.FAULTS,
    *experts.FAULTS,
    *ends.FAULTS,
    *mixtures.FAULTS,
)
VARIANTS: tuple[Variant, ...] = healthy.VARIANTS
RUNS: tuple[Run, ...] = tuple(run_of(kind, seed=2) for kind in KINDS)  # healthy models that no rule was tried on
