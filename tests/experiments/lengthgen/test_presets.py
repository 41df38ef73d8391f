"""Every named experiment can be run, and looks beyond its training length."""

import pytest

from normlab.cli.lengthgen import request_of
from normlab.errors import ConfigError
from normlab.experiments.lengthgen.experiment import runs_of
from normlab.experiments.lengthgen.presets import EXPERIMENTS, preset


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_named_experiment_is_possible(name):
    for part in EXPERIMENTS[name].parts:
        request = request_of({}, EXPERIMENTS[name].options(part))
        assert len(runs_of(request)) >= 2 * request.seeds >= 10
        assert any(length > request.train_length for length in request.test_lengths)


def test_what_is_typed_wins():
    request = request_of({"steps": 7}, preset("dyck-beyond-depth").options("longer"), set_=["pairs=1"])
    assert (request.steps, request.task.pairs, request.task.depth) == (7, 1, 3)
    with pytest.raises(ConfigError, match="did you mean 'widths'"):
        preset("width")
