"""Both ends of the seesaw against the lemmas, and sentences that follow their numbers."""

import math

import pytest

from normlab.theory.mean_field import MeanFieldSetting
from normlab.theory.seesaw import SeesawArm, seesaw, start

SMALL = MeanFieldSetting(dim=32, tokens=8)


def test_post_norm_is_on_the_sphere_and_pre_norm_grows():
    """Xiong's lemmas: |x|^2 = d behind every Post-Norm layer; between 1 + l/2 and 1 + 3l/2 times d for Pre-Norm."""
    post = start("post_norm", depth=8, setting=SMALL, seed=0)
    assert post.stream == pytest.approx([1.0] * 8, abs=1e-6)
    pre = seesaw("pre_norm", depth=8, draws=6, setting=SMALL)
    for layer, size in enumerate(pre.stream, 1):
        assert 1 + 0.4 * layer < size**2 < 1 + 1.7 * layer
    assert 0.3 < pre.exponent < 0.6


def test_only_post_norm_loses_gradients():
    post, pre = (seesaw(name, depth=12, draws=4, setting=SMALL) for name in ("post_norm", "pre_norm"))
    assert post.kept < 0.8 < 1 < pre.kept


def test_sentences_follow_the_numbers():
    up = SeesawArm("a", (1.0, 2.0, 3.0), (4.0, 2.0, 1.0))
    assert "grows 3 times over 3 layers" in up.sentence
    assert "4 times the last's: gradients are kept" in up.sentence
    down = SeesawArm("b", (1.0, 1.0, 1.0), (0.5, 1.0, 2.0))
    assert "stays bounded" in down.sentence
    assert "4 times smaller than the last's: gradients are lost" in down.sentence
    assert down.exponent == pytest.approx(0.0)
    assert up.exponent == pytest.approx(math.log(3) / math.log(3), abs=0.05)
