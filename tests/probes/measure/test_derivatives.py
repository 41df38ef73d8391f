"""The gradient beside differences of the loss: detaches and wrong backward passes are found, where they stand."""

import pytest
import torch
from torch import nn

import normlab as nl
from normlab.probes.inputs.losses import pick
from normlab.probes.measure.derivatives import read_derivatives
from normlab.probes.trace.locate import locate

transformers = pytest.importorskip("transformers")
DEPTH = 5


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=DEPTH, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def batch():
    return torch.randint(0, 64, (4, 32), generator=torch.Generator().manual_seed(1))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, upstream):
        return ctx.factor * upstream, None


def read(model):
    ids = batch()
    layout = locate(model, lambda: model(ids))
    return read_derivatives(layout, ids, pick("auto", model, ids))


def test_a_right_gradient_is_asked_once():
    (row,) = read(llama())
    assert row.layer == 0
    assert not row.wrong
    assert row.apart < 0.02


@pytest.mark.parametrize("layer", range(DEPTH))
def test_a_detach_is_found_where_it_stands(layer):
    model = llama()
    model.model.layers[layer].register_forward_hook(lambda *given: given[2].detach())
    rows = read(model)
    assert max(row.layer for row in rows if row.wrong) == layer
    assert next(row for row in rows if row.layer == layer).apart == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("factor", [-1.0, 0.5, 4.0])
def test_a_wrong_backward_pass_is_found_where_it_stands(factor):
    model = llama()
    nn.init.normal_(model.model.layers[2].mlp.down_proj.weight, std=0.3)  # a branch that matters
    model.model.layers[2].mlp.register_forward_hook(lambda *given: Scaled.apply(given[2], factor))
    assert max(row.layer for row in read(model) if row.wrong) == 2


def test_a_scale_of_one_is_no_finding():
    model = llama()
    model.model.layers[2].mlp.register_forward_hook(lambda *given: Scaled.apply(given[2], 1.0))
    assert not any(row.wrong for row in read(model))


def test_diagnose_says_so_first_and_leaves_no_trace():
    model = llama()
    model.model.layers[3].register_forward_hook(lambda *given: given[2].detach())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = nl.diagnose(model, [batch()], skips=False)
    assert found.verdicts[0].id == "wrong_gradient"
    assert found.verdicts[0].layers == (3,)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all("forward" not in vars(layer) for layer in model.model.layers)


def test_rounding_in_the_forward_pass_is_not_judged():
    """Straight-through: the loss moves in steps, so two lengths of step disagree, and nobody is accused."""
    model = llama()
    model.model.layers[1].mlp.register_forward_hook(
        lambda *given: given[2] + ((given[2] / 2e-3).round() * 2e-3 - given[2]).detach()
    )
    assert not any(row.wrong for row in read(model))
