"""Attention dynamics on the sphere: how each normalisation scheme moves tokens, with closed forms to check it.

from normlab import dynamics
dynamics.scalar("peri", n=256, beta=5.0, time=10.0).hits
dynamics.oracle("terminal", "pre", n=256, beta=5.0)
dynamics.simulate(["post", "peri"], n=64, d=512, beta=1.0, seeds=(0, 1, 2)).cosine
"""

from normlab.dynamics.fields import FIELDS, PAPER_SIX, Custom, Field, Gain, GainSchedule, Stage, scheme_field
from normlab.dynamics.flow.scalar import Curve, scalar
from normlab.dynamics.flow.simulate import Setting, Simulation, simulate
from normlab.dynamics.flow.solver import Tolerance
from normlab.dynamics.laws.oracles import Oracle, Terminal, oracle

__all__ = [
    "FIELDS",
    "PAPER_SIX",
    "Curve",
    "Custom",
    "Field",
    "Gain",
    "GainSchedule",
    "Oracle",
    "Setting",
    "Simulation",
    "Stage",
    "Terminal",
    "Tolerance",
    "oracle",
    "scalar",
    "scheme_field",
    "simulate",
]
