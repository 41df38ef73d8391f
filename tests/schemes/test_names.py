"""One way to write schemes: what is written is read, what is read is written back, and a fault is one clear sentence."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import normlab as nl
from normlab.errors import ConfigError
from normlab.schemes import families, label, parse_scheme, parse_schemes
from normlab.schemes.names import split


@pytest.mark.parametrize("name", sorted(nl.SCHEMES))
def test_every_scheme_round_trips(name):
    config = nl.scheme(name)
    assert label(config) == name
    assert parse_scheme(label(config)) == config
    assert parse_scheme(f" {name.upper().replace('_', '-')} ( ) ") == config


def variants():
    """Every option of every scheme at a value that is not its default, where the class takes it."""
    tries = [
        True,
        False,
        None,
        2,
        3,
        0.25,
        1e-06,
        "peri_norm",
        "sigmoid",
        "static",
        "input",
        "one",
        "identity",
        "reference",
    ]
    for name, cls in nl.SCHEMES.items():
        for option, value in itertools.product([k for k in cls.model_fields if k != "name"], tries):
            try:
                config = nl.scheme(name, **{option: value})
            except ConfigError:
                continue
            yield pytest.param(config, id=f"{name}-{option}-{value}")


@pytest.mark.parametrize("config", list(variants()))
def test_every_option_round_trips(config):
    again = parse_scheme(label(config))
    assert again == config
    assert label(again) == label(config)


def test_labels_are_those_of_stored_results():
    assert (
        label(nl.scheme("block_attn_res", blocks=4, inner="peri_norm")) == "block_attn_res(inner=peri_norm, blocks=4)"
    )
    assert label(nl.scheme("hyper_connections", dynamic=False)) == "hyper_connections(dynamic=False)"
    assert label(nl.scheme("attn_res", key_eps=1e-7)) == "attn_res(key_eps=1e-07)"
    assert label(nl.scheme("block_attn_res", inner="pre_norm")) == "block_attn_res"  # a default is not written


def test_it_is_the_same_in_python_yaml_and_overrides():
    shape = {"vocab_size": 11, "dim": 8, "depth": 4, "heads": 2}
    wanted = nl.scheme("block_attn_res", blocks=2)
    assert nl.scheme("block_attn_res(blocks=2)") == wanted
    assert nl.scheme("Block-Attn-Res(blocks=2)", heads=2) == nl.scheme("block_attn_res", blocks=2, heads=2)
    config = nl.TransformerConfig(**shape, scheme="block_attn_res(blocks=2)")
    assert config.scheme == wanted
    assert nl.TransformerConfig.from_yaml(config.to_yaml()) == config
    text = "vocab_size: 11\ndim: 8\ndepth: 4\nheads: 2\nscheme: block_attn_res(blocks=2)\n"
    assert nl.TransformerConfig.from_yaml(text) == config
    plain = nl.TransformerConfig(**shape)
    assert plain.override(["scheme=block_attn_res(blocks=2)"]) == config
    assert plain.override(["scheme=block_attn_res(blocks=2)", "scheme.heads=2"]).scheme.heads == 2


def test_lists_families_and_all():
    found = parse_schemes("pre_norm, block_attn_res(blocks=2, heads=2),post-norm")
    assert [choice.label for choice in found] == ["pre_norm", "block_attn_res(heads=2, blocks=2)", "post_norm"]
    assert found[1].config == nl.scheme("block_attn_res", blocks=2, heads=2)
    assert found[1].name == "block_attn_res"
    assert [c.label for c in parse_schemes("all")] == list(nl.SCHEMES)
    streams = ["hyper_connections", "mhc", "independent_hc", "gated_residual"]
    assert [c.label for c in parse_schemes(["multi_stream"])] == streams
    assert [c.label for c in parse_schemes("Multi-Stream,mhc,ngpt")] == [*streams, "ngpt"]
    assert len(parse_schemes("block_attn_res(blocks=2),all")) == len(nl.SCHEMES) + 1
    given = [nl.scheme("mhc", streams=2), "placement"]
    assert parse_schemes(given)[0].label == "mhc(streams=2)"


def test_families_are_words_that_can_be_typed_and_no_scheme_hides_one():
    assert set(families()) >= {"placement", "sphere", "two-stream", "multi-stream", "depth-sources"}
    assert sum(map(len, families().values())) == len(nl.SCHEMES)
    for family in families():
        assert family == family.lower().replace(" ", "-")
        assert family.replace("-", "_") not in {*nl.SCHEMES, "all"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pre_nrm", ["unknown scheme 'pre_nrm'", "did you mean 'pre_norm'", "normlab schemes"]),
        ("multistreams", ["unknown scheme 'multistreams'", "the family 'multi-stream'"]),
        (
            "block_attn_res(bloks=2)",
            ["no option 'bloks'", "did you mean 'blocks'", "block_size", "block_attn_res(bloks=2)"],
        ),
        ("pre_norm(blocks=2)", ["pre_norm has no option 'blocks'", "its options: embedding_norm"]),
        ("pre_norm(name=post_norm)", ["no option 'name'"]),
        ("block_attn_res(blocks)", ["key=value", "'blocks'"]),
        ("block_attn_res(blocks=two)", ["'block_attn_res(blocks=two)'", "blocks", "'two'"]),
        ("block_attn_res(blocks=2, blocks=3)", ["'blocks' is given twice"]),
        ("block_attn_res(blocks=2", ["not closed"]),
        ("block_attn_res)", ["closes nothing"]),
        ("block_attn_res(blocks='2)", ["not closed"]),
        ("pre_norm post_norm", ["name or name(option=value, ...)"]),
        ("pre_norm,pre-norm", ["'pre_norm' is given twice"]),
        ("", ["at least one scheme"]),
        (" , ", ["at least one scheme"]),
    ],
)
def test_a_fault_is_one_sentence(text, words):
    with pytest.raises(ConfigError) as caught:
        parse_schemes(text)
    for word in words:
        assert word in str(caught.value)


def test_one_scheme_is_not_a_family():
    with pytest.raises(ConfigError, match="stands for 4 schemes where one is meant"):
        parse_scheme("multi-stream")
    with pytest.raises(ConfigError, match="given twice, in the text and beside it"):
        nl.scheme("block_attn_res(blocks=2)", blocks=3)
    with pytest.raises(ConfigError, match="named by a text"):
        nl.scheme(3)


@given(st.text(alphabet="ab=,()[]{}'\" ", max_size=30))
def test_split_never_crashes_and_keeps_every_sign(text):
    try:
        parts = list(split(text))
    except ConfigError:
        return
    kept = [c for c in text if c not in ", "]
    assert [c for part in parts for c in part if c not in ", "] == kept
    assert all(part == part.strip() and part for part in parts)
