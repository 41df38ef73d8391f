import math

import pytest
import torch
from torch import nn

from normlab.errors import ConfigError, DamagedError, UnsupportedError
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


def small(**options):
    torch.manual_seed(0)
    return Transformer(TransformerConfig(vocab_size=8, dim=8, depth=2, heads=2, **options))


def test_the_embedding_may_be_left_out_of_the_decay():
    model = small(tie_embeddings=True)
    left_out = {n for n, yes in optim.decayed(model).items() if yes} - {
        n for n, yes in optim.decayed(model, embeddings=False).items() if yes
    }
    assert left_out == {"embedding.weight"}


def test_muon_takes_the_matrices_of_branches_and_nothing_else():
    model = small(bias=True)
    both = optim.muon_and_adamw(model, lr=0.1)
    named = {id(p): name for name, p in model.named_parameters()}
    muon, rest = ({named[id(p)] for g in part.param_groups for p in g["params"]} for part in both.parts)
    assert muon == {n for n, p in model.named_parameters() if n.startswith("branches.") and p.ndim == 2}
    assert not muon & rest
    assert muon | rest == set(named.values())


def test_a_step_of_muon_is_torchs():
    """On the matrices it is torch's Muon with AdamW's step size; on the rest it is our AdamW."""
    first, second = small(), small()
    tokens = torch.randint(8, (2, 5), generator=torch.Generator().manual_seed(0))
    for model in (first, second):
        model(tokens).square().mean().backward()
    optim.muon_and_adamw(first, lr=0.1, weight_decay=0.2).step()
    matrices = [p for n, p in second.named_parameters() if n.startswith("branches.") and p.ndim == 2]
    torch.optim.Muon(matrices, lr=0.1, weight_decay=0.2, adjust_lr_fn="match_rms_adamw").step()
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b) == name.startswith("branches."), name


def test_muon_is_missing_in_an_older_torch(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(UnsupportedError, match="has no Muon"):
        optim.muon_and_adamw(small(), lr=0.1)
    with pytest.raises(UnsupportedError, match="has no"):
        optim.muon_and_adamw(nn.Linear(2, 2), lr=0.1)


def test_moments_of_muon_round_trip(tmp_path):
    model = small()
    first, second = optim.muon_and_adamw(model, lr=0.1), optim.muon_and_adamw(model, lr=0.1)
    model(torch.zeros(1, 3, dtype=torch.long)).square().sum().backward()
    first.step()
    kept = optim.moments(first)
    optim.check_moments(second, kept, tmp_path)
    optim.load_moments(second, kept)
    again = optim.moments(second)
    assert kept.keys() == again.keys()
    assert all(torch.equal(kept[key], again[key]) for key in kept)
    with pytest.raises(DamagedError):
        optim.check_moments(second, {"0:0/nonsense": torch.zeros(1)}, tmp_path)


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
