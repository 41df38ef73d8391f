"""The start: how every matrix of a model begins. One rule for all schemes, so that a comparison compares schemes.

    matrix W [out, in] of a branch    N(0, f^2 / in)                       f is 1 (`start_factor`)
    output projections (out, down)    the same, divided by the square root of the number of branches, sqrt(2L)
    embedding table [vocabulary, d]   N(0, 1 / d), and sqrt(d) times that in the stream: mean square 1
    head                              the table as it is (tied), or N(0, 1 / d)
    learned positions [length, d]     N(0, 1 / d)
    gains of norms, biases            1, 0

What a scheme *is* stays: its gains on the value path (`Init.definition`), its scalars, its projections onto the sphere.
What was only its authors' *recipe* (Xavier, GPT-2's 0.02) is the start `authors`: `Init` says it. A recipe can also be given
to another scheme, as a control: `plain` (0.02), `gpt2` (0.02, outputs divided by sqrt(2L)), `xavier`.
"""

from __future__ import annotations

from typing import Literal

Start = Literal["fair", "authors", "plain", "gpt2", "xavier"]

AUTHORS_STD = 0.02
"""Standard deviation of plain matrices and tables in the start `authors`, where the model names no other."""


def output_factor(branches: int) -> float:
    """What the output projection of each branch is multiplied by at the fair start.

    Chosen by the worst regret over four schemes and two widths (`tools/start_candidates.py`).
    """
    return float(branches**-0.5)
