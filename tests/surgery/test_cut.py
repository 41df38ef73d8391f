"""A config that speaks of layers, cut."""

import pytest

from normlab.surgery.anatomy import anatomy
from normlab.surgery.cut import cut, cut_config
from tests.surgery.models import build

transformers = pytest.importorskip("transformers")


def test_counts_of_layers_are_counted_again():
    config = transformers.Qwen2Config(num_hidden_layers=6, max_window_layers=4, eos_token_id=[1, 2, 3, 4, 5, 6])
    config.layer_types = [f"kind {i}" for i in range(6)]
    cut_config(config, [0, 4, 5], 6)
    assert (config.num_hidden_layers, config.max_window_layers) == (3, 1)
    assert config.layer_types == ["kind 0", "kind 4", "kind 5"]
    assert config.eos_token_id == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "kimi_linear"])
def test_layers_are_numbered_anew_and_a_cut_can_be_undone(name):
    model = build(name)
    body = anatomy(model)
    depth, old = len(body.layers), model.config
    numbers = [m.layer_idx for m in model.modules() if hasattr(m, "layer_idx")]
    undo = cut(body, [0, 2])
    assert model.config.num_hidden_layers == 2
    assert len(anatomy(model).layers) == 2
    assert {m.layer_idx for m in model.modules() if hasattr(m, "layer_idx")} == {0, 1}
    undo()
    assert model.config is old
    assert len(anatomy(model).layers) == depth
    assert [m.layer_idx for m in model.modules() if hasattr(m, "layer_idx")] == numbers
