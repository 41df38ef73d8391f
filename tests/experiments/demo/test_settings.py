"""The demo is what was promised: all schemes, three that are trained alike, two and a half minutes at most."""

import pytest

from normlab.errors import ConfigError
from normlab.experiments.demo.settings import settings, skipped
from normlab.schemes import SCHEMES


def test_the_promise():
    demo = settings()
    assert set(demo.atlas.schemes) == set(SCHEMES)
    assert demo.training.schemes == ("pre_norm", "post_norm", "block_attn_res")
    assert demo.training.warmup == 0.0
    assert demo.training.start == demo.atlas.init == "fair"
    assert sum(demo.seconds) <= 150
    assert demo.seconds[0] <= 30
    assert "Ctrl-C" in demo.sentence
    assert "minutes" in demo.sentence


def test_stages_by_name_and_number():
    assert skipped(("1", "Training")) == {"atlas", "training"}
    with pytest.raises(ConfigError, match="valid: atlas, fault, training"):
        skipped(("4",))
