"""The demo is what was promised: all schemes, three that differ, four minutes at most."""

import pytest

from normlab.errors import ConfigError
from normlab.experiments.demo.settings import settings, skipped
from normlab.schemes import SCHEMES


def test_the_promise():
    demo = settings()
    assert set(demo.atlas.schemes) == set(SCHEMES)
    assert demo.training.schemes == ("pre_norm", "post_norm", "block_attn_res")
    assert sum(demo.seconds) <= 240
    assert demo.seconds[0] <= 60
    assert "Ctrl-C" in demo.sentence
    assert "minutes" in demo.sentence


def test_stages_by_name_and_number():
    assert skipped(("1", "Training")) == {"atlas", "training"}
    with pytest.raises(ConfigError, match="valid: atlas, fault, training"):
        skipped(("4",))
