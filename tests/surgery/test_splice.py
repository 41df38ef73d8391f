"""Which way a scheme goes into a model, and that it comes out again without a trace."""

import pytest
import torch

from normlab.schemes import SCHEMES, scheme
from normlab.surgery.anatomy import anatomy
from normlab.surgery.splice import Fixed, Scale, affine, build, splice, unsplice, way_of
from tests.surgery.models import BACKBONES, asked, inputs
from tests.surgery.models import build as model_of

pytest.importorskip("transformers")


def test_ways():
    ways = {name: way_of(config()) for name, config in SCHEMES.items()}
    assert {ways[name] for name in ("attn_res", "mhc", "dense_former", "layer_scale", "ln_scaling")} == {"keep"}
    assert {ways[name] for name in ("pre_norm", "peri_norm", "post_norm", "keel", "mix_norm", "rezero")} == {"place"}
    assert {ways[name] for name in ("resi_dual", "laurel", "gated_residual")} == {"own"}


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("chosen", ["attn_res", "peri_norm", "post_norm"])
def test_it_comes_out_without_a_trace(name, chosen):
    model, batch = model_of(name), inputs(name)
    before, keys = asked(model, batch), list(model.state_dict())
    body = anatomy(model)
    config = scheme(chosen)
    splice(body, build(config, body), way=way_of(config))
    assert torch.isfinite(asked(model, batch)).all()
    unsplice(body)
    assert torch.equal(asked(model, batch), before)
    assert list(model.state_dict()) == keys
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules() if type(m).__name__ != "T5Stack")


def test_the_scheme_owns_no_norm_of_the_model():
    model = model_of("llama")
    body = anatomy(model)
    splice(body, build(scheme("block_attn_res"), body), way="keep")
    assert {name for name, _ in model.model.scheme.named_parameters()} == {"queries", "key_gain"}
    assert all(isinstance(norm, Scale) for norm in model.model.scheme.pre)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_a_fixed_norm_is_the_norm_at_its_size(name):
    """For a token whose size is the measured one, norm and fixed norm agree (a layer norm: where its mean is 0)."""
    norm = next(m for m in model_of(name).modules() if "Norm" in type(m).__name__)
    with torch.no_grad():
        norm.weight.add_(torch.randn_like(norm.weight))
        fixed = Fixed(norm)
        x = torch.randn(1, 32)
        x = x - x.mean()
        fixed.size.fill_(float(x.square().mean().sqrt()))
        torch.testing.assert_close(fixed(x), norm(x), atol=1e-4, rtol=1e-4)
    assert affine(torch.nn.Identity()) == (None, None)
