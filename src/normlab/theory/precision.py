"""How many bits the answer to set complement needs, without a norm on the attention output and with one.

On the residual stream a token's displacement stands beside values of the stream's own size, say 1. Without a norm it is
c/s: a float with machine epsilon e rounds 1 - c/s to 1 once c/s <= e/4 (half of the spacing below 1; ties go to even), so
nothing is left of it from the length 4c/e on. A norm on the branch makes it g sqrt(v(v-1)/(s(v-s))), which is smallest at
s = v/2 and never below 2g sqrt((v-1)/v): a fixed number of bits serves every length and every vocabulary.
"""

from __future__ import annotations

import math

import torch

from normlab.theory.complement_theorem import gap_for, gap_with_norm


def lost_from(c: float, dtype: torch.dtype) -> int:
    """The first length at which the displacement c/s beside a stream of 1 is rounded away."""
    return math.ceil(4 * c / torch.finfo(dtype).eps)


def resolved(displacement: float, dtype: torch.dtype) -> bool:
    """Does anything of the displacement survive beside 1?"""
    return bool(torch.tensor(1 - displacement, dtype=torch.float64).to(dtype) != 1)


def least_gap_with_norm(gain: float) -> float:
    """A bound for every v and s: 2g sqrt((v-1)/v) >= sqrt(2) g, with equality at v = 2."""
    return math.sqrt(2) * gain


def scale_needed(tv: float, s: int, v: int) -> tuple[float, float]:
    """The c without a norm, and the gain g with one, that bring the total variation at length s to `tv`."""
    if tv >= s / v:  # uniform over all tokens is already that good
        return 0.0, 0.0
    need = gap_for(tv, s, v)
    return need * s, need / float(gap_with_norm(s, v, 1.0))
