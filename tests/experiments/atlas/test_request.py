import pytest

from normlab.errors import ConfigError
from normlab.experiments.atlas.request import FIVE, AtlasRequest


def test_heads_follow_the_width():
    assert [AtlasRequest(dim=dim).heads for dim in (8, 32, 64, 256)] == [1, 1, 2, 8]


def test_the_shape_is_said():
    asked = AtlasRequest(depth=4, dim=32, seed=7)
    assert asked.schemes == FIVE
    assert asked.shape == "4 layers, width 32, the fair start, 4 x 64 bytes of the shipped plays, random seed 7"


def test_older_words_for_the_start():
    assert AtlasRequest(init="paper") == AtlasRequest(init="unit")
    assert AtlasRequest(init="gpt2").init == "gpt2"
    with pytest.raises(ConfigError, match="'fair', 'gpt2' or 'unit'"):
        AtlasRequest(init="xavier")


def test_bad_requests():
    with pytest.raises(ConfigError, match="did you mean 'peri_norm'"):
        AtlasRequest(schemes=("peri_nrom",))
    with pytest.raises(ConfigError, match="depth"):
        AtlasRequest(depth=0)
    assert AtlasRequest.from_yaml(AtlasRequest(schemes=("Keel",)).to_yaml()).schemes == ("keel",)
