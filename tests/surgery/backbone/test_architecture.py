"""A config.json, read and made small."""

import json

import pytest

from normlab.errors import ConfigError, InputError
from normlab.surgery.backbone.architecture import config_of, read_architecture, sizes, small
from normlab.surgery.backbone.config import BackboneConfig
from normlab.surgery.backbone.model import Backbone

transformers = pytest.importorskip("transformers")
TINY = {"vocab_size": 11, "dim": 32, "depth": 3, "heads": 2}


def written(folder, **values):
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


def test_a_folder_a_file_and_a_shipped_name(tmp_path):
    folder = written(tmp_path, model_type="llama", hidden_size=32)
    assert read_architecture(folder) == read_architecture(f"{folder}/config.json")
    assert read_architecture("kimi_linear")["model_type"] == "kimi_linear"
    assert read_architecture(written(tmp_path, model_type="normlab_llama"))["model_type"] == "llama"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"hidden_size": 3}, "names no model_type"),
        ({"model_type": "llama", "quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_what_is_no_backbone(values, says, tmp_path):
    with pytest.raises(InputError, match=says):
        read_architecture(written(tmp_path, **values))


def test_what_is_not_there(tmp_path):
    with pytest.raises(
        InputError, match=r"no backbone is at 'kimi_liner' \(did you mean 'kimi_linear'\?\); give a model folder"
    ):
        read_architecture("kimi_liner")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="is no JSON"):
        read_architecture(str(tmp_path))
    with pytest.raises(ConfigError, match="does not know 'lama'; did you mean 'llama'"):
        config_of({"model_type": "lama"})


def test_small_ones_keep_their_sizes_and_large_ones_shrink(tmp_path):
    assert sizes("kimi_linear") == (64, 4, 4)
    assert sizes(written(tmp_path, model_type="llama")) == (64, 12, 4)


@pytest.mark.parametrize(
    "kind",
    ["llama", "qwen3", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "olmo2", "mixtral", "kimi_linear", "opt", "phi"],
)
def test_every_kind_shrinks_to_something_that_can_be_built(kind, tmp_path):
    """From the defaults of its class, which are those of the large model."""
    source = written(tmp_path, model_type=kind)
    config = BackboneConfig.sized(source, "pre_norm", **TINY)
    assert (config.dim, config.depth, config.heads, config.vocab_size) == (32, 3, 2, 11)
    model = Backbone(config)
    assert model.num_parameters() < 400_000
    assert len(model.sites) in (3, 6)


def test_what_is_said_by_layer_is_cut_with_the_layers(tmp_path):
    found = json.loads(small(written(tmp_path, model_type="gemma3_text"), **TINY))
    assert found["layer_types"] == ["sliding_attention"] * 3
    found = json.loads(small("kimi_linear", **TINY))
    assert found["mlp_layer_types"] == ["dense", "sparse", "sparse"]
    assert found["qk_head_dim"] == found["qk_nope_head_dim"] + found["qk_rope_head_dim"]
    assert found["pad_token_id"] is None


def test_more_layers_than_there_are(tmp_path):
    with pytest.raises(ConfigError, match="'kimi_linear' has 4 layers, so 5 are not to be had"):
        small("kimi_linear", vocab_size=11, dim=64, depth=5, heads=4)
    with pytest.raises(ConfigError, match="5 heads do not divide the width 64"):
        small("kimi_linear", vocab_size=11, dim=64, depth=4, heads=5)
