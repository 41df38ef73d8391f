"""A part that was patched is named; what only looks, or computes the same otherwise, is not."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

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


def mixed_precision(model, kind=torch.bfloat16):
    own = model.forward

    def cast(*args, **kwargs):
        with torch.autocast("cpu", dtype=kind):
            return own(*args, **kwargs)

    model.forward = cast


def in_eight_bits(model):
    def read(_module, args):
        scale = args[0].abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        return ((args[0] / scale).round() * scale,)

    for module in model.modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            module.register_forward_pre_hook(read)


@pytest.mark.parametrize("name", ["llama", "gpt2", "olmo2", "phi"])
@pytest.mark.parametrize("change", [mixed_precision, in_eight_bits])
def test_coarser_numbers_are_the_same_function(name, change):
    model = build(name).eval()
    change(model)
    found = read(model, name)
    assert found.places == ()
    assert APART < found.coarse.typical <= found.coarse.worst < 0.02
    assert found.coarse.products >= 13


def test_a_patch_under_mixed_precision_is_named():
    for change in (
        lambda m: m.model.layers[1].self_attn.k_proj.register_forward_hook(lambda *a: a[2].roll(1, 0)),
        lambda m: m.model.layers[1].register_forward_hook(lambda *a: 1.1 * a[2]),
        lambda m: patched(m.model.layers[0].mlp, lambda out: 0.9 * out),
    ):
        model = build("llama").eval()
        change(model)
        mixed_precision(model)
        found = read(model, "llama")
        assert found.coarse is None
        assert any(place.layer >= 0 and place.apart > 0.05 for place in found.places)


def test_a_small_factor_on_every_product_is_no_rounding():
    model = build("llama").eval()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *a: 1.01 * a[2])
    found = read(model, "llama")
    assert found.coarse is None
    assert found.places
