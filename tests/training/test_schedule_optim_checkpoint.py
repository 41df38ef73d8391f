import math

import pytest
import torch
from torch import nn

from normlab.errors import ConfigError, InputError
from normlab.model import Transformer, TransformerConfig
from normlab.training import Schedule, checkpoint, optim


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


class TestCheckpoint:
    def save(self, folder, step, value=1.0):
        return checkpoint.save(folder, step, {"a": {"x": torch.full((3,), value)}}, {"note": step})

    def test_round_trip_and_two_kept(self, tmp_path):
        for step in (10, 20, 30):
            self.save(tmp_path, step, float(step))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000020", "step-000000030"]
        found = checkpoint.latest(tmp_path)
        assert (found.step, found.state) == (30, {"note": 30})
        assert torch.equal(found.group("a")["x"], torch.full((3,), 30.0))

    def test_nothing_there(self, tmp_path):
        assert checkpoint.latest(tmp_path / "none") is None

    @pytest.mark.parametrize("victim", ["tensors.safetensors", "state.json"])
    @pytest.mark.parametrize("how", ["flip", "cut", "gone"])
    def test_damage_falls_back_to_the_one_before(self, tmp_path, victim, how):
        self.save(tmp_path, 10)
        path = self.save(tmp_path, 20) / victim
        raw = bytearray(path.read_bytes())
        if how == "gone":
            path.unlink()
        else:
            raw[-20] ^= 1
            path.write_bytes(raw if how == "flip" else raw[: len(raw) // 2])
        with pytest.warns(UserWarning, match="step-000000020 is damaged"):
            assert checkpoint.latest(tmp_path).step == 10

    def test_all_damaged_is_one_sentence(self, tmp_path):
        (self.save(tmp_path, 10) / "state.json").write_text("{}")
        with pytest.warns(UserWarning, match="damaged"), pytest.raises(InputError, match="delete that folder"):
            checkpoint.latest(tmp_path)

    def test_a_half_written_checkpoint_is_never_seen(self, tmp_path):
        self.save(tmp_path, 10)
        (tmp_path / ".step-000000020.tmp").mkdir()
        (tmp_path / ".step-000000020.tmp" / "state.json").write_text("half")
        assert checkpoint.latest(tmp_path).step == 10
        self.save(tmp_path, 30)
        assert not list(tmp_path.glob(".*"))


def test_moments_round_trip():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    first, second = optim.adamw(model, lr=0.1), optim.adamw(model, lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    first.step()
    optim.load_moments(second, optim.moments(first))
    a, b = first.state_dict()["state"], second.state_dict()["state"]
    assert all(torch.equal(a[i][key], b[i][key]) for i in a for key in a[i])
