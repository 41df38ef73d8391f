"""The twin shares weights, computes its own buffers, and is not made where it would say nothing."""

import pytest
import torch
import transformers
from torch import nn

from normlab.probes.measure.twin.build import pristine
from tests.probes.zoo import ARCHITECTURES, build, inputs


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_twin_shares_every_weight_and_says_the_same(name):
    model = build(name).eval()
    twin = pristine(model)
    if twin is None:  # a class of the zoo's own, or of another library
        assert not type(model).__module__.startswith("transformers.models.")
        return
    theirs = dict(twin.named_parameters(remove_duplicate=False))
    for path, parameter in model.named_parameters(remove_duplicate=False):
        assert theirs[path].data_ptr() == parameter.data_ptr() or "embed_positions" in path, path
    with torch.no_grad():
        one, other = (next(iter(each(**inputs(name)).values())) for each in (model, twin))
    assert torch.allclose(one, other, atol=1e-5)


def test_frequencies_that_no_file_stores_are_computed_anew():
    model = build("llama")
    model.model.rotary_emb.inv_freq.mul_(2)
    twin = pristine(model)
    assert torch.allclose(2 * twin.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)


def test_a_class_of_its_own_has_no_twin():
    class Mine(transformers.LlamaForCausalLM):
        pass

    assert pristine(Mine(build("llama").config)) is None
    assert pristine(nn.Linear(2, 2)) is None


def test_a_wrapped_module_still_lends_its_weights_and_an_adapter_does_not():
    class Wrapped(nn.Module):
        def __init__(self, inner, *, adapter=False):
            super().__init__()
            self.inner = inner
            if adapter:
                self.more = nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x)

    model = build("llama")
    model.model.layers[1].mlp = Wrapped(model.model.layers[1].mlp)
    twin = pristine(model)
    assert twin.model.layers[1].mlp.up_proj.weight is not None
    model.model.layers[1].mlp = Wrapped(model.model.layers[1].mlp.inner, adapter=True)
    assert pristine(model) is None


def test_building_a_twin_leaves_chance_as_it_was():
    model = build("llama")
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    pristine(model)
    assert torch.equal(torch.rand(1), expected)
