import pytest

from normlab.errors import ConfigError
from normlab.experiments.compare.arms import Arm
from normlab.experiments.compare.experiment import run_of
from normlab.experiments.compare.presets import PRESETS, preset
from normlab.experiments.compare.request import CompareRequest


@pytest.mark.parametrize("name", PRESETS)
def test_every_rung_has_its_tokens_a_parameter(name):
    request = CompareRequest(**preset(name))
    model = run_of(request, Arm("pre_norm", request.depths[0]), lr=1e-3, seed=0, steps=1).build()
    least = 2.5 if name == "ladder-quarter" else 10  # a first look, which decides nothing
    assert least <= request.tokens / model.num_parameters() < 1.01 * least
    assert request.recipe == "authors"
    assert (request.tune_seeds, request.tune_share) == (1 if name == "ladder-quarter" else 2, 0.25)


def test_names_take_dashes_or_underscores():
    assert preset("ladder_small") is PRESETS["ladder-small"]
    with pytest.raises(ConfigError, match="ladder"):
        preset("lader")
