"""Update ratios against arithmetic, and Adam's first step, which is known."""

import math

import pytest
import torch

import normlab as nl
from normlab.observe.updates import first_steps, layer_weights, update_ratios


def made():
    torch.manual_seed(0)
    return nl.Transformer(nl.TransformerConfig(vocab_size=11, dim=16, depth=3, heads=2)), torch.randint(11, (2, 7))


def test_a_planted_update():
    model, _ = made()
    before = layer_weights(model)
    with torch.no_grad():
        for parameter in model.branches[2:4].parameters():
            parameter.mul_(1.25)
    assert update_ratios(before, layer_weights(model)) == pytest.approx((0.0, 0.25, 0.0), abs=1e-7)


def test_adams_first_step_moves_every_weight_by_the_rate():
    model, tokens = made()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-12)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    sizes = [
        math.sqrt(sum(float(w.square().mean()) * w.numel() for w in layer)) for layer in layer_weights(model).layers
    ]
    counts = [sum(w.numel() for w in layer) for layer in layer_weights(model).layers]
    found = first_steps(model, step, tokens, steps=2)
    expected = [1e-3 * math.sqrt(n) / size for n, size in zip(counts, sizes, strict=True)]
    assert found.ratios[0] == pytest.approx(expected, rel=2e-2)
    assert len(found.ratios) == 2
    assert 0 < found.outputs[0] < found.outputs[1]
