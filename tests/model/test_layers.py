import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normlab as nl
from normlab.model.layers import Embedding, Linear

X = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def model_of(scheme, **changes):
    shape = {"vocab_size": 13, "dim": 12, "depth": 1, "heads": 3, "positions": "nope"}
    model = nl.Transformer(nl.TransformerConfig(**{**shape, "scheme": scheme, **changes})).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or "scale" in name:  # gains and scales away from one
                parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
    return model


def test_ngpt_feed_forward():
    """u = s_u W_u h sqrt(d), v = s_v W_v h sqrt(d); W_o (u SiLU(v)), as the authors' code has it."""
    ffn = model_of("ngpt").branches[1]
    w = ffn.matrices()
    gate_scale, up_scale = ffn.scale.chunk(2)
    gate, up = (X @ w["gate"].T) * gate_scale * math.sqrt(12), (X @ w["up"].T) * up_scale * math.sqrt(12)
    torch.testing.assert_close(ffn(X), (F.silu(gate) * up) @ w["down"].T)


ACTIVATIONS = {
    "relu": torch.relu, "gelu": F.gelu, "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "swiglu": F.silu, "geglu": lambda z: F.gelu(z, approximate="tanh"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_every_kind_is_its_formula(kind):
    ffn = model_of("pre_norm", ffn=kind, bias=True).branches[1]
    with torch.no_grad():
        ffn.up.bias.normal_()
        ffn.down.bias.normal_()
    w = ffn.matrices()
    hidden = ACTIVATIONS[kind]
    if kind in ("swiglu", "geglu"):
        gate_bias, up_bias = ffn.up.bias.chunk(2)
        inner = hidden(X @ w["gate"].T + gate_bias) * (X @ w["up"].T + up_bias)
    else:
        inner = hidden(X @ w["up"].T + ffn.up.bias)
    torch.testing.assert_close(ffn(X), inner @ w["down"].T + ffn.down.bias)


def test_matrices_are_views_to_be_filled_in_place():
    ffn = model_of("pre_norm").branches[1]
    for weight in ffn.matrices().values():
        weight.zero_()
    assert not ffn(X).any()


def test_building_draws_no_random_numbers():
    """So that a model's weights depend on its one initialisation, not on the order of its parts."""
    before = torch.get_rng_state()
    Linear(4, 3)
    Embedding(5, 4)
    assert torch.equal(before, torch.get_rng_state())
    nn.Linear(4, 3)
    assert not torch.equal(before, torch.get_rng_state())


def test_a_bias_is_reset_to_zero_and_the_weight_is_left_alone():
    layer = Linear(4, 3)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(5.0)
    layer.reset_parameters()
    assert layer.bias.tolist() == [5.0] * 3
    layer.reset_bias_()
    assert layer.bias.tolist() == [0.0] * 3
    assert layer(torch.ones(4)).tolist() == [8.0] * 3
    Linear(4, 3, bias=False).reset_bias_()
