"""Sites, norms and owners, read off the table of architectures."""

import pytest

from normlab.errors import UnsupportedError
from normlab.surgery.anatomy import anatomy
from tests.surgery.models import BACKBONES, build

pytest.importorskip("transformers")

RMS = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "t5_encoder", "kimi_linear", "mixtral")
PARALLEL = ("gpt_neox", "phi", "falcon", "falcon_7b")


@pytest.mark.parametrize("name", BACKBONES)
def test_sites(name):
    body = anatomy(build(name))
    depth = len(body.layers)
    assert len(body.places) == depth * (1 if name in PARALLEL else 2)
    assert body.dim == 32
    assert [site.index for site in body.sites] == list(range(len(body.sites)))
    assert body.sites[-1].closes_layer
    assert sum(site.closes_layer for site in body.sites) == depth
    for place in body.places:
        assert len(place.pre) + len(place.res) + bool(place.out) >= 1
    assert body.norm == ("rmsnorm" if name in RMS else "layernorm")


def test_owners_are_where_transformers_collects_hidden_states():
    for name, owner in (
        ("llama", "LlamaModel"),
        ("opt", "OPTDecoder"),
        ("bert", "BertModel"),
        ("t5_encoder", "T5Stack"),
    ):
        assert type(anatomy(build(name)).owner).__name__ == owner


def test_a_model_that_accelerate_has_spread():
    accelerate = pytest.importorskip("accelerate")
    import torch

    model = build("llama")
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    with pytest.raises(UnsupportedError, match="spread over devices"):
        anatomy(model)
