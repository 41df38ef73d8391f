"""Requests small enough to run for real."""

from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.runs.score import HeldOut
from normlab.tasks import task


def request(**changes):
    values = {
        "schemes": ("pre_norm", "block_attn_res"), "depths": (2,), "dim": 16, "heads": 2, "batch": 4, "length": 8,
        "task": task("tomita", number=4), "tokens": 4 * 8 * 10, "seeds": 2, "lrs": (1e-3, 4e-3), "extend": 1,
        "measure": HeldOut(validations=4, curve_sequences=8, sequences=8, layer_sequences=2),
    }  # fmt: skip
    return CompareRequest(**{**values, **changes})
