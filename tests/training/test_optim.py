import math

import pytest
import torch
from torch import nn

from normlab.errors import ConfigError
from normlab.model import Transformer, TransformerConfig
from normlab.training import Schedule, optim


@pytest.mark.parametrize("scheme", ["pre_norm", "attn_res", "hyper_connections"])
def test_only_weight_matrices_decay(scheme):
    model = Transformer(TransformerConfig(vocab_size=8, dim=8, depth=2, heads=2, scheme=scheme, bias=True))
    decays = optim.decayed(model)
    assert {name for name, yes in decays.items() if yes} == {
        name for name, p in model.named_parameters() if p.ndim == 2 and not name.startswith("scheme.")
    }
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = optim.adamw(model, lr=0.1, weight_decay=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, before[name] * (0.95 if decays[name] else 1.0)), name


def test_moments_round_trip():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    first, second = optim.adamw(model, lr=0.1), optim.adamw(model, lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    first.step()
    optim.load_moments(second, optim.moments(first))
    a, b = first.state_dict()["state"], second.state_dict()["state"]
    assert all(torch.equal(a[i][key], b[i][key]) for i in a for key in a[i])


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        (Schedule(kind="linear", warmup=10), {1: 0.1, 10: 1.0, 55: 0.5, 100: 0.0}),
        (Schedule(kind="linear", warmup=0, final=0.1), {1: 1 - 0.9 / 100, 50: 0.55, 100: 0.1}),
        (Schedule(kind="cosine", warmup=10), {5: 0.5, 55: 0.5, 100: 0.0, 77: 0.5 * (1 + math.cos(math.pi * 67 / 90))}),
        (Schedule(kind="wsd", warmup=10, decay=0.2), {10: 1.0, 80: 1.0, 90: 0.5, 100: 0.0}),
        (Schedule(kind="constant", warmup=4), {2: 0.5, 4: 1.0, 100: 1.0}),
    ],
)
def test_schedule_points(schedule, points):
    for n, factor in points.items():
        assert schedule.factor(n, 100) == pytest.approx(factor, abs=1e-12), n


def test_unknown_schedule_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        Schedule(kind="cosin")
