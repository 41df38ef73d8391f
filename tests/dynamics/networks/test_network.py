"""The discrete layers: the paper's maps, and the flow as their limit."""

import numpy as np
import pytest
import torch

from normlab.dynamics import FIELDS, simulate
from normlab.dynamics.flow.weights import Weights
from normlab.dynamics.networks.network import apply_layer, layers


def _unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def test_one_layer_is_the_papers_map():
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unit = _unit(x)
    a = torch.softmax(2.0 * unit @ unit.T, -1) @ unit
    maps = {
        "post_norm": _unit(unit + a),
        "pre_norm": x + a,
        "peri_norm": x + _unit(a),
        "ngpt": _unit(a),  # alpha = 1 replaces the token
        "sqrt_scaling": _unit(unit + a / 2**0.5),  # second layer: l = 1
        "deep_norm": _unit(2.0 * unit + a),
        "res_norm": x + _unit(torch.softmax(2.0 * unit @ unit.T, -1) @ x),
        "ln_scaling": x + a / 2**0.5,
    }
    for name, expected in maps.items():
        t = 1.0 if name in ("sqrt_scaling", "ln_scaling") else 0.0
        got = apply_layer(x, FIELDS[name].last, t, 1.0, Weights(), 2.0, None)
        assert torch.allclose(got, expected, atol=1e-14), name


def test_small_steps_converge_to_the_flow_at_first_order():
    """With everything on: random weights, two heads, causal mask, FFN."""
    names = [*FIELDS]
    setting = {"n": 10, "d": 12, "beta": 2.0, "time": 3.0, "weights": "fresh", "heads": 2, "causal": True, "ffn": True}
    flow = simulate(names, samples=4, relative=1e-6, absolute=1e-8, **setting).cosine[:, 0]
    errors = []
    for step in (0.1, 0.05):
        every = round(1 / step)
        errors.append(np.abs(layers(names, step=step, **setting).cosine[:, 0, ::every] - flow).max(-1))
    assert (errors[1] < 0.03).all()
    assert errors[0] / errors[1] == pytest.approx(np.full(len(names), 2.0), abs=0.35)


def test_the_signal_back_goes_like_one_over_the_radius():
    """While attention looks at itself, d theta_L / d x_l = (1/r_l) P: flat on the sphere, 1/r_l in a growing stream."""
    found = layers(["post_norm", "pre_norm", "peri_norm", "ln_scaling"], n=16, d=64, beta=8.0, time=24.0, seeds=(0, 1))
    signal, radius = found.gradient.mean(1)[:, 1:], found.radius.mean(1)[:, 1:]
    assert signal[0] == pytest.approx(np.full(24, signal[0, -1]), rel=0.01)
    for grown in (1, 2, 3):
        carried = signal[grown] * radius[grown]
        assert carried == pytest.approx(np.full(24, carried[-1]), rel=0.005)
    assert signal[1, 0] / signal[1, -1] == pytest.approx(radius[1, -1] / radius[1, 0], rel=0.005)  # twelvefold


def test_with_fresh_weights_the_signal_still_follows_the_radius_within_a_factor_of_two():
    found = layers(
        ["pre_norm", "peri_norm"], n=16, d=64, beta=8.0, time=24.0, weights="fresh", ffn=True, seeds=(0, 1, 2)
    )
    carried = (found.gradient * found.radius).mean(1)[:, 1:]
    assert (carried.max(1) / carried.min(1) < 2.0).all()
    assert (found.gradient.mean(1)[:, 1] / found.gradient.mean(1)[:, -1] > 2.0).all()
