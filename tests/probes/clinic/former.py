"""The half that was set aside once: it has been looked at, so rules may be tuned on it now, as on the open half.

What a careless edit, a bad merge, a broken conversion, a bad quantisation or a bad setting would do. Strengths are drawn
from a range, places by chance, and no fault was chosen or tuned by what `diagnose` says of it.
"""

from __future__ import annotations

from .former_faults import attention, ends, experts, layers, training
from .protocol import Fault

FAULTS: tuple[Fault, ...] = (
    *layers.FAULTS,
    *attention.FAULTS,
    *ends.FAULTS,
    *experts.FAULTS,
    *training.FAULTS,
)
