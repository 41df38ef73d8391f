"""Gradient rows against the gradient that autograd gives for the whole."""

import math

import pytest
import torch

from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.gradients import Agreement, PullRow, measure, suspects
from normlab.probes.trace.locate import locate
from tests.probes.zoo import Encoder


def squares(model, batch):
    return model(batch).square().mean()


def test_rows_are_the_gradient_of_the_mean_loss_and_branches_share_a_layer():
    model = Encoder(norm_first=True).eval()
    batches = [torch.randint(0, 97, (2, 6)) for _ in range(2)]
    found = measure(locate(model, lambda: None), batches, Loss("squares", squares))
    rows, value = found.rows, found.loss
    mean = sum(squares(model, batch) for batch in batches) / 2
    mean.backward()
    assert value == pytest.approx(float(mean.detach()), rel=1e-6)
    for row, layer in zip(rows, model.encoder.layers, strict=True):
        gradients = [parameter.grad.double() for parameter in layer.parameters()]
        total = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        assert row.gradient_norm == pytest.approx(total, rel=1e-5)
        assert row.gradient_rms == pytest.approx(total / math.sqrt(sum(g.numel() for g in gradients)), rel=1e-5)
        assert 0 < row.attention_gradient**2 + row.ffn_gradient**2 < row.gradient_norm**2 * (1 + 1e-6)
        assert row.stream_gradient > 0


def test_a_loss_times_three_has_three_times_the_gradient():
    model, batch = Encoder(norm_first=True).eval(), torch.randint(0, 97, (2, 6))
    layout = locate(model, lambda: None)
    once = measure(layout, [batch], Loss("squares", squares)).rows
    thrice = measure(layout, [batch], Loss("thrice", lambda m, b: 3 * squares(m, b))).rows
    for a, b in zip(once, thrice, strict=True):
        assert b.gradient_norm == pytest.approx(3 * a.gradient_norm, rel=1e-5)
        assert b.stream_gradient == pytest.approx(3 * a.stream_gradient, rel=1e-5)


def test_frozen_layers_are_measured_and_nothing_is_left_behind():
    model = Encoder(norm_first=True).eval()
    model.encoder.layers[1].requires_grad_(False)
    rows = measure(locate(model, lambda: None), [torch.randint(0, 97, (2, 6))], Loss("squares", squares)).rows
    assert rows[0].gradient_norm > 0
    assert rows[1].gradient_norm > 0  # frozen for training, not dead
    assert not any(parameter.requires_grad for parameter in model.encoder.layers[1].parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


# -- what batches have in common -------------------------------------------------------------------------------------------
def test_agreement_is_that_of_all_pairs_of_batches():
    torch.manual_seed(0)
    weights = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    batches = [{name: torch.randn_like(w) + 0.5 for name, w in weights.items()} for _ in range(6)]
    agreement, totals = Agreement(weights), {}
    for batch in batches:
        agreement.add(batch, totals, 10)
    for name, weight in weights.items():
        vectors = torch.stack([batch[name].flatten() for batch in batches]).double()
        length = float(weight.norm())
        assert agreement.size(name) == pytest.approx(length * float(vectors.square().sum(1).mean().sqrt()), rel=1e-5)
        running = [float(vectors[i] @ vectors[:i].mean(0)) for i in range(1, 6)]
        assert agreement.steady(name) == pytest.approx(length * math.sqrt(max(sum(running) / 5, 0)), rel=1e-5)
        torch.testing.assert_close(totals[name].flatten().double(), vectors.sum(0))


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_noise_scale_of_known_noise(scale):
    """Gradients s + n with n of variance scale^2 per coordinate: B = targets |n|^2 / |s|^2."""
    generator = torch.Generator().manual_seed(0)
    signal = torch.ones(20_000)
    agreement, totals = Agreement({"w": torch.ones(20_000)}), {}
    for _ in range(8):
        agreement.add({"w": signal + scale * torch.randn(20_000, generator=generator)}, totals, 5)
    found = agreement.noise()
    assert found.targets == pytest.approx(5 * scale**2, rel=0.25)
    assert found.high > found.targets
    assert found.batches == 8


def test_pure_noise_has_no_certain_signal_and_three_batches_say_nothing():
    generator = torch.Generator().manual_seed(0)
    agreement, totals = Agreement({"w": torch.ones(20_000)}), {}
    for count in range(8):
        agreement.add({"w": torch.randn(20_000, generator=generator)}, totals, 5)
        if count == 2:
            assert agreement.noise() is None
    assert agreement.noise().high == math.inf


def test_suspects_are_the_layers_at_which_batches_agree_beside_their_neighbours():
    rows = [PullRow(layer, "w", 0.0, 1.0, 5.0 if layer == 4 else 0.5 + 0.1 * layer) for layer in range(8)]
    assert suspects(rows, 8, most=1) == (4,)
