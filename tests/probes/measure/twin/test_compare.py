"""A part that was patched is named; what only looks, or computes the same otherwise, is not."""

import pytest
import torch
from torch import nn

from normlab.probes.measure.twin.compare import APART, read_twin
from normlab.probes.trace.locate import locate
from tests.probes.zoo import ARCHITECTURES, build, inputs


def read(model, name):
    batch = inputs(name)
    layout = locate(model, lambda: model(**batch))
    return read_twin(layout, model, batch)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_as_it_was_built_is_its_class(name):
    found = read(build(name).eval(), name)
    assert found is None or (found.apart < 1e-5 and found.places == ())


def places(change):
    model = build("llama").eval()
    change(model)
    found = read(model, "llama")
    assert found.apart > APART
    return {(place.layer, place.part) for place in found.places}


def patched(module, function):
    own = module.forward
    module.forward = lambda *args, **kwargs: function(own(*args, **kwargs))


def test_the_part_that_was_changed_is_named():
    layer = lambda model: model.model.layers[1]  # noqa: E731
    assert places(lambda m: layer(m).self_attn.k_proj.register_forward_hook(lambda *a: a[2].roll(1, 0))) == {
        (1, "attention")
    }
    assert places(lambda m: patched(layer(m).mlp, lambda out: 1.1 * out)) == {(1, "ffn")}
    assert places(lambda m: patched(layer(m).input_layernorm, lambda out: 1.1 * out)) == {(1, "norm")}
    assert places(lambda m: layer(m).register_forward_hook(lambda *a: 1.1 * a[2])) == {(1, "layer")}
    assert places(lambda m: setattr(layer(m).self_attn, "scaling", 1.0)) == {(1, "attention")}
    assert places(lambda m: m.model.rotary_emb.inv_freq.mul_(3)) == {(-1, "positions")}
    assert places(lambda m: m.model.norm.register_forward_hook(lambda *a: 1.1 * a[2])) == {(-1, "final_norm")}
    assert places(lambda m: m.lm_head.register_forward_hook(lambda *a: 1.1 * a[2])) == {(-1, "head")}
    assert places(lambda m: m.model.embed_tokens.register_forward_hook(lambda *a: 1.1 * a[2])) == {(-1, "embeddings")}


def test_what_only_looks_or_computes_the_same_is_silent():
    model = build("llama").eval()
    seen = []
    model.model.layers[0].register_forward_hook(lambda *a: seen.append(a[2]))

    class Same(nn.Module):
        def __init__(self, weight, eps):
            super().__init__()
            self.weight, self.eps = weight, eps

        def forward(self, x):
            return nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)

    old = model.model.norm
    model.model.norm = Same(old.weight, old.variance_epsilon)
    model.gradient_checkpointing_enable()
    found = read(model, "llama")
    assert found.apart < APART
    assert found.places == ()


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_other_precisions_are_silent(kind):
    model = build("llama").eval().to(kind)
    assert read(model, "llama").apart < APART
