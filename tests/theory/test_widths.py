import pytest

from normlab.errors import ConfigError
from normlab.theory.mean_field import MeanFieldSetting
from normlab.theory.widths import width_sweep


def test_the_bound_is_kept_and_is_not_tight():
    found = width_sweep("post_norm", (64, 16, 32), MeanFieldSetting(draws=4, tokens=8), depth=3)
    assert found.dims == [16, 32, 64]
    assert 0.2 < found.exponent < 0.8 < found.bound_exponent
    assert found.to_dict()["exponent"] == found.exponent
    with pytest.raises(ConfigError, match="two widths"):
        width_sweep("post_norm", (32, 32))
