"""A fourth half, written blind once more: by somebody who has read neither the rules nor what they said before.

New accidents, and healthy models in new clothes (`VARIANTS`). Strengths are those at which the accidents happen; layers are
drawn. Left out by number was only what costs less than 0.05 nats wherever it is tried and harms nobody otherwise; of what
was left, the closest to earlier faults went until there were forty.
"""

from __future__ import annotations

from .blind_faults.tools import Variant
from .protocol import Fault
from .unseen_faults import attention, ends, experts, gradients, grids, healthy, loading, norms, passing, training

FAULTS: tuple[Fault, ...] = (
    *loading.FAULTS,
    *attention.FAULTS,
    *norms.FAULTS,
    *passing.FAULTS,
    *grids.FAULTS,
    *ends.FAULTS,
    *experts.FAULTS,
    *training.FAULTS,
    *gradients.FAULTS,
)
VARIANTS: tuple[Variant, ...] = healthy.VARIANTS
