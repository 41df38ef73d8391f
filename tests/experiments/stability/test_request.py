import pytest

from normlab.errors import ConfigError
from normlab.experiments.stability.request import StabilityRequest
from normlab.tasks import task


def request(**changes):
    values = {"schemes": ("no_norm", "pre_norm"), "depths": (2,), "dim": 16, "heads": 2, "batch": 4, "length": 8,
              "task": task("tomita", number=4), "steps": 20, "warmups": (0, 5), "lrs": (1e-2, 10.0), "factor": 40.0,
              "clip": None}  # fmt: skip
    return StabilityRequest(**{**values, **changes})


def test_bad_requests():
    with pytest.raises(ConfigError, match="90 steps of warm-up do not fit into 20"):
        request(warmups=(0, 90)).check()
    with pytest.raises(ConfigError, match="two or more different positive rates"):
        request(lrs=(1e-3,))
    with pytest.raises(ConfigError, match="did you mean"):
        request(schemes=("pre_nom",))
