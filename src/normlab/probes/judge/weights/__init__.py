"""Gains, matrices, experts and copies: what the weights alone show. Causes come first."""

from normlab.probes.judge.weights import experts, gains, grids, matrices

RULES = (
    *matrices.RULES[:3],
    *grids.RULES,
    *experts.RULES[:2],
    *gains.RULES,
    *matrices.RULES[3:],
    *experts.RULES[2:],
)
