"""Sizes and what does not go together. tests/test_config.py has files, overrides and schemas."""

import pytest

from normlab.errors import ConfigError
from normlab.model import TransformerConfig
from normlab.schemes import scheme


def config(**changes):
    return TransformerConfig(**{"vocab_size": 11, "dim": 48, "depth": 3, "heads": 4, **changes})


def test_sizes_by_formula():
    assert (config().size_of_head, config(head_dim=10).size_of_head) == (12, 10)
    assert config(ffn="gelu").size_of_ffn == 4 * 48
    assert config(ffn="swiglu").size_of_ffn == 8 * 48 // 3
    assert config(dim=104).size_of_ffn == 8 * 35  # 8/3 of 104 is 277.3; the next multiple of 8
    assert config(ffn_dim=7).size_of_ffn == 7


def test_sites_are_attention_and_ffn_or_attention_alone():
    assert [site.kind for site in config().sites()] == ["attention", "ffn"] * 3
    alone = config(ffn="none").sites()
    assert [site.kind for site in alone] == ["attention"] * 3
    assert [site.layer for site in alone] == [1, 2, 3]
    assert (config().frame().dim, config().frame(width=5).dim) == (48, 5)


def test_a_scheme_may_be_written_in_four_ways():
    ways = ["block_attn_res(blocks=2)", {"name": "Block-Attn-Res", "blocks": 2}, scheme("block_attn_res", blocks=2)]
    assert len({config(scheme=way).to_json() for way in ways}) == 1
    assert config(scheme={"name": "block_attn_res(blocks=2)", "heads": 2}).scheme.heads == 2
    with pytest.raises(ConfigError, match="needs a `name`"):
        config(scheme={"blocks": 2})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 5}, "5 heads do not divide the width 48"),
        ({"kv_heads": 3}, "3 key-value heads do not divide 4 heads"),
        ({"head_dim": 7}, "rope turns pairs of channels, but a head has 7"),
        ({"scheme": "block_attn_res(blocks=99)"}, "99 is more than the model's 6 branches"),
    ],
)
def test_what_does_not_go_together(changes, words):
    with pytest.raises(ConfigError, match=words):
        config(**changes)
