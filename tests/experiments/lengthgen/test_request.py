"""What may be asked of a length experiment."""

import pytest

from normlab.errors import ConfigError
from normlab.experiments.lengthgen.request import LengthgenRequest, default_lengths
from normlab.tasks import task


def test_default_lengths():
    assert default_lengths(task("set_complement", vocab=32), 8) == (1, 2, 4, 8, 16, 23, 31)
    assert default_lengths(task("dyck"), 20) == (10, 20, 40, 80)
    assert LengthgenRequest(task="dyck(pairs=2)", preset="two_layer").test_lengths == (4, 8, 16, 32)


def test_schemes_families_and_fixes():
    asked = LengthgenRequest(task="dyck", preset="two_layer", schemes=["pre-norm", "block_attn_res(blocks=2)"])
    assert asked.schemes == ("pre_norm", "block_attn_res(blocks=2)")
    assert "attn_res" in LengthgenRequest(task="dyck", preset="two_layer", schemes=("all",)).schemes
    with pytest.raises(ConfigError, match="did you mean 'head_norm'"):
        LengthgenRequest(fixes=("head_nrm",))
    with pytest.raises(ConfigError, match="one layer by definition"):
        LengthgenRequest(depth=2)


def test_it_round_trips():
    asked = LengthgenRequest(task=task("dyck", pairs=2), preset="two_layer", lrs=(1e-3, 1e-2), test_lengths=(4, 8))
    assert LengthgenRequest.from_yaml(asked.to_yaml()) == asked
