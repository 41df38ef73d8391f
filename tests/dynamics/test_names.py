import pytest

from normlab.dynamics import FIELDS, PAPER_SIX
from normlab.dynamics.fields import scheme_field
from normlab.dynamics.names import parse_fields
from normlab.errors import ConfigError, UnsupportedError


def test_names_groups_and_options():
    assert [f.name for f in parse_fields("paper")] == list(PAPER_SIX)
    assert [f.name for f in parse_fields(["all"])] == list(FIELDS)
    assert "ngpt" not in [f.name for f in parse_fields("placement")]
    assert [f.name for f in parse_fields("sphere, post-LN,post")] == ["ngpt", "post_norm"]
    assert parse_fields("mix_norm(tau=3),mix") == [scheme_field("mix_norm", tau=3), FIELDS["mix_norm"]]
    assert parse_fields("ln_scaling(logits=scaled)") == [scheme_field("ln_scaling", logits="scaled")]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (",", ConfigError, "--schemes is empty"),
        ("multi-stream", ConfigError, "--schemes is empty"),
        ("block_attn_res(blocks=2)", UnsupportedError, "they cover post_norm"),
        ("post_norm(tau=3)", ConfigError, "post_norm, which takes no option"),
        ("mix_norm(tua=3)", ConfigError, "an option is one of tau, alpha"),
        ("mix_norm(tau=-1)", ConfigError, "positive number"),
    ],
)
def test_faults(text, error, words):
    with pytest.raises(error, match=words):
        parse_fields(text)
