"""The half that was set aside on 2026-11-17: written by somebody who had not read the rules; spent since.

What a careless edit, a bad merge, a broken conversion, a bad quantisation or a training gone wrong would do. Strengths are
drawn from a range, places by chance, and no fault was chosen or tuned by what `diagnose` says of it: only by what it does to
the loss.
"""

from __future__ import annotations

from .protocol import Fault
from .set_aside_faults import conversion, masks, merges, norms, passing, quantised, routing, schooling, vocabulary

FAULTS: tuple[Fault, ...] = (
    *merges.FAULTS,
    *conversion.FAULTS,
    *quantised.FAULTS,
    *norms.FAULTS,
    *passing.FAULTS,
    *masks.FAULTS,
    *vocabulary.FAULTS,
    *routing.FAULTS,
    *schooling.FAULTS,
)
