"""What a verdict says besides its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Words(NamedTuple):
    """`advice` names schemes by the keys of `schemes`, and all of them, for a command, as {compare}.

    `normal` is said where no reference model was measured.
    """

    subject: str
    why: str
    advice: str
    schemes: Mapping[str, tuple[str, ...]] = {}
    normal: str = ""
