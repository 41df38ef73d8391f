"""The half that is set aside: written without knowledge of the rules, and looked at once, at the end.

What a careless edit, a bad merge, a broken conversion, a bad quantisation or a bad setting would do. Strengths are drawn
from a range, places by chance, and no fault was chosen or tuned by what `diagnose` says of it.
"""

from __future__ import annotations

from .protocol import Fault
from .set_aside_faults import attention, ends, experts, layers, training

FAULTS: tuple[Fault, ...] = (
    *layers.FAULTS,
    *attention.FAULTS,
    *ends.FAULTS,
    *experts.FAULTS,
    *training.FAULTS,
)
