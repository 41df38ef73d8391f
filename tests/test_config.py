import inspect
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normlab as nl
from normlab.config import Config, load_yaml
from normlab.errors import ConfigError

SHAPE = {"vocab_size": 50, "dim": 32, "depth": 4, "heads": 4}


def model_config(**changes):
    return nl.TransformerConfig(**{**SHAPE, **changes})


def test_configs_are_frozen():
    with pytest.raises(Exception, match="frozen"):
        model_config().dim = 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dpeth": 3}, ["dpeth", "unknown key", "'depth'"]),
        ({"depth": "3"}, ["depth", "integer", "'3'"]),
        ({"depth": -2}, ["depth", "greater than or equal to 1", "-2"]),
        ({"depth": True}, ["depth", "integer", "True"]),
        ({"heads": 5}, ["5 heads do not divide the width 32", "head_dim"]),
        ({"kv_heads": 3}, ["3 key-value heads do not divide 4 heads"]),
        ({"positions": "rop"}, ["positions", "'rop'", "did you mean 'rope'"]),
        ({"scheme": "pre_nrom"}, ["unknown scheme 'pre_nrom'", "did you mean 'pre_norm'"]),
        ({"scheme": {"name": "block_attn_res", "block": 3}}, ["block", "did you mean 'blocks'"]),
        ({"scheme": {"blocks": 3}}, ["needs a `name`"]),
        ({"scheme": {"name": "block_attn_res", "blocks": 9}}, ["scheme.blocks", "9", "8 branches"]),
        ({"scheme": "ngpt", "qk_norm": "head"}, ["qk_norm", "ngpt has its own"]),
        ({"heads": 32, "dim": 96}, ["rope turns pairs", "3"]),
    ],
)
def test_bad_values_are_one_clear_sentence(changes, words):
    with pytest.raises(ConfigError) as error:
        model_config(**changes)
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert "pydantic" not in text


def test_all_faults_are_listed():
    with pytest.raises(ConfigError) as error:
        model_config(depth=0, dpeth=1, norm="rms")
    assert all(word in str(error.value) for word in ("(1)", "(2)", "(3)", "dpeth", "norm"))


def test_yaml_and_json_round_trip():
    config = model_config(scheme=nl.scheme("block_attn_res", blocks=3, inner="peri_norm"), dropout=0.1, kv_heads=2)
    assert nl.TransformerConfig.from_yaml(config.to_yaml()) == config
    assert nl.TransformerConfig.from_yaml(config.to_json()) == config
    assert nl.TransformerConfig.from_dict(config.to_dict()) == config
    assert "normlab." not in config.to_yaml(), "a saved config must not hold Python paths"


def test_files(tmp_path):
    config = model_config()
    (tmp_path / "model.yaml").write_text(config.to_yaml())
    assert nl.TransformerConfig.from_file(tmp_path / "model.yaml") == config
    (tmp_path / "bad.yaml").write_text("depth: [1\nheads: 2")
    with pytest.raises(ConfigError, match="not valid YAML at line 2"):
        nl.TransformerConfig.from_file(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="mapping"):
        nl.TransformerConfig.from_file(tmp_path / "list.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        nl.TransformerConfig.from_file(tmp_path / "none.yaml")


def test_numbers_in_yaml_follow_expectation():
    assert load_yaml("[1e-3, 1E5, .5, 3, 1_0, 0x10, 2.]") == [1e-3, 1e5, 0.5, 3, 10, 16, 2.0]


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=200, deadline=None)
def test_every_float_survives_yaml(value):
    class One(Config):
        value: float

    assert One.from_yaml(One(value=value).to_yaml()).value == value


def test_overrides():
    config = model_config(scheme="block_attn_res")
    changed = config.override(["depth=6", "scheme.blocks=4", "dropout=1e-1", "kv_heads=2"])
    assert (changed.depth, changed.scheme.blocks, changed.dropout, changed.kv_heads) == (6, 4, 0.1, 2)
    assert config.override(["scheme=peri-norm"]).scheme == nl.scheme("peri_norm")
    assert config.override([]) == config
    assert config.override(["scheme=mhc", "scheme.streams=2"]).scheme == nl.scheme("mhc", streams=2)
    for bad, word in (
        ("depth", "key=value"),
        ("schem.blocks=3", "did you mean 'scheme'"),
        ("scheme.blocs=3", "did you mean 'blocks'"),
        ("depth=x", "integer"),
    ):
        with pytest.raises(ConfigError, match=word):
            config.override([bad])


def test_replace_validates():
    assert model_config().replace(depth=9).depth == 9
    with pytest.raises(ConfigError, match="heads"):
        model_config().replace(heads=7)


def test_json_schema_names_every_scheme_and_key():
    schema = nl.TransformerConfig.json_schema()
    json.dumps(schema)
    assert set(SHAPE) <= set(schema["required"])
    text = json.dumps(schema["properties"]["scheme"])
    assert all(f'"{name}"' in text for name in nl.SCHEMES)
    assert "block_size" in text


@pytest.mark.parametrize("name", ["pre_norm", "Pre-Norm", "pre-norm", " PRE_NORM "])
def test_names_take_dashes_and_case(name):
    assert nl.scheme(name) == nl.scheme("pre_norm")


def every_config(root=Config):
    for child in root.__subclasses__():
        yield child
        yield from every_config(child)


def test_every_default_config_survives_yaml_and_overrides():
    """Whatever has defaults everywhere: tuples, sections and all."""
    import normlab.experiments.atlas.measure  # loads tasks
    import normlab.training.loop  # noqa: F401

    tried = 0
    for kind in every_config():
        if kind.__module__.startswith("normlab.") and not (
            inspect.isabstract(kind) or any(f.is_required() for f in kind.model_fields.values())
        ):
            config = kind()
            assert kind.from_yaml(config.to_yaml()) == config, kind
            assert config.override([]) == config, kind
            tried += 1
    assert tried > 28


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dim: 2020-13-45", "cannot be read as YAML"),
        ("dim: " + "9" * 5000, "cannot be read as YAML"),
        ("a: &x [*x]", "more than 20000 values"),
        ("[" * 2000, "YAML"),
        ("dim: 3\ndim: 4", "'dim' is given twice"),
        ("1: 2", "are words"),
        ("rope_theta: .inf", "rope_theta"),
        ("vocab_size: 9999999999999999999999999", "vocab_size"),
        ("", "mapping"),
    ],
)
def test_hostile_yaml_is_one_sentence(text, words):
    with pytest.raises(ConfigError) as error:
        nl.TransformerConfig.from_yaml(text)
    assert words in str(error.value)


def test_faults_of_a_section_have_dotted_paths():
    with pytest.raises(ConfigError) as error:
        model_config(scheme={"name": "attn_res", "heads": 0, "windw": 3})
    assert "scheme.heads: " in str(error.value)
    assert "scheme.windw: unknown key" in str(error.value)
    assert "did you mean 'window'" in str(error.value)


def test_another_name_is_another_section():
    config = model_config(scheme="post_norm").override(["scheme.name=attn_res", "scheme.heads=2"])
    assert config.scheme == nl.scheme("attn_res", heads=2)


def test_the_schema_knows_schemes_that_were_registered_later():
    from typing import Literal

    class Late(type(nl.scheme("pre_norm"))):
        name: Literal["late_norm"] = "late_norm"

    nl.register(Late)
    try:
        assert "late_norm" in json.dumps(nl.TransformerConfig.json_schema())
    finally:
        nl.SCHEMES.pop("late_norm")


def test_pydantics_own_entrance_has_our_error():
    with pytest.raises(ConfigError, match=r"(?s)dept.*depth"):
        nl.TransformerConfig.model_validate({"vocab_size": 8, "dim": 8, "dept": 2, "heads": 2})


def bomb(levels):
    """Ten aliases of ten aliases of ...: 10^levels values in a few lines."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        bomb(9),
        "a: &a [*a]",
        "a: &a {b: 1}\n" + "c: {<<: [" + ", ".join(["*a"] * 15_000) + "]}",
        "[" + "0," * 25_000 + "]",
    ],
    ids=["aliases", "itself", "merges", "plain"],
)
def test_more_values_than_anybody_writes_are_refused(text):
    with pytest.raises(ConfigError, match="more than 20000 values"):
        load_yaml(text)


def test_aliases_are_fine():
    assert load_yaml(bomb(3))["a2"][9][9] == ["x"] * 10
    assert load_yaml("a: &a {b: 1}\nc: {<<: *a, d: 2}") == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}


@pytest.mark.parametrize(
    "text", ["!!timestamp x", "!!int x", "!!float x", "!!binary é", "a: !!bool 3", "!!set [1]", "? [a]\n: b"]
)
def test_a_tag_that_does_not_fit_is_one_sentence(text):
    with pytest.raises(ConfigError) as caught:
        load_yaml(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["/dev/zero", ".", "a\0b"])
def test_what_is_no_configuration_file(path):
    with pytest.raises(ConfigError, match="cannot read the model file"):
        nl.TransformerConfig.from_file(path)
