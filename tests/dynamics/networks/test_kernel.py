import numpy as np
import pytest
import torch

from normlab.dynamics import FIELDS
from normlab.dynamics.networks.kernel import Push, cosines, kernel, propagate


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_kernels_against_sampled_units(activation):
    rng = np.random.default_rng(0)
    std, g = 0.8, 0.35
    u = rng.standard_normal((2, 2_000_000)) * std
    u[1] = g * u[0] + np.sqrt(1 - g * g) * u[1]
    x = torch.tensor(u)
    phi = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "swiglu": torch.nn.functional.silu}[activation](x)
    expected = float((phi[0] * phi[1]).mean() / (phi[0] ** 2).mean()) * (g if activation == "swiglu" else 1.0)
    assert float(kernel(activation, std)(np.array(g))) == pytest.approx(expected, abs=0.004)
    assert float(kernel(activation, std)(np.array(1.0))) == pytest.approx(1.0, abs=1e-9)


def test_uniform_attention_in_one_step_by_hand():
    """Two orthogonal tokens, uniform attention of size 1, Pre-LN: K = I + ones, so the cosine is 1/2."""
    after = propagate(
        np.eye(2), [Push("attention", FIELDS["pre_norm"].last, 1.0)], mask=None, kappa=kernel("relu", 1.0)
    )[-1]
    assert cosines(after)[0, 1] == pytest.approx(0.5)
