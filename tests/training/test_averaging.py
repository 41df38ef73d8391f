import pytest
import torch
from torch import nn

from normlab.errors import ConfigError
from normlab.training import BEMA, EMA


def walk(steps: int, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.randn(steps, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).cumsum(0))


def model_at(value: torch.Tensor) -> nn.Module:
    module = nn.Module()
    module.theta = nn.Parameter(value.clone())
    return module


def closed_form(points, *, kappa, eta, rho, gamma, tau, phi):
    """The EMA as an explicit weighted sum over all past points (no recursion)."""
    start = points[tau]
    times = list(range(tau + phi, len(points), phi))
    beta = {t: (rho + gamma * t) ** -kappa for t in times}
    total = start * torch.tensor([1 - beta[t] for t in times], dtype=torch.float64).prod()
    for i, t in enumerate(times):
        total = (
            total
            + points[t] * beta[t] * torch.tensor([1 - beta[u] for u in times[i + 1 :]], dtype=torch.float64).prod()
        )
    last = times[-1]
    return total, total + (rho + gamma * last) ** -eta * (points[last] - start)


@pytest.mark.parametrize(("tau", "phi"), [(0, 1), (0, 7), (5, 1), (12, 4)])
@pytest.mark.parametrize(("kappa", "eta", "rho", "gamma"), [(0.5, 0.2, 10.0, 1.0), (0.9, 0.0, 2.0, 0.5)])
def test_bema_equals_its_closed_form(tau, phi, kappa, eta, rho, gamma):
    points = walk(50)
    module = model_at(points[0])
    average = BEMA(module, kappa=kappa, eta=eta, rho=rho, gamma=gamma, burn_in=tau, every=phi)
    for point in points[1:]:
        module.theta.data.copy_(point)
        average.update()
    ema, bema = closed_form(points, kappa=kappa, eta=eta, rho=rho, gamma=gamma, tau=tau, phi=phi)
    assert (average.weights("ema")["theta"] - ema).abs().max() < 1e-12
    assert (average.weights("bema")["theta"] - bema).abs().max() < 1e-12


def test_constant_decay_is_the_usual_ema():
    points = walk(30)
    module = model_at(points[0])
    average = EMA(module, decay=0.9, every=1)
    expected = points[0].clone()
    for point in points[1:]:
        module.theta.data.copy_(point)
        average.update()
        expected = 0.9 * expected + 0.1 * point
    assert (average.weights()["theta"] - expected).abs().max() < 1e-12


def test_averaged_gives_the_model_back_bit_for_bit_even_after_an_error():
    module = nn.Linear(4, 4)
    average = BEMA(module, every=1)
    with torch.no_grad():
        module.weight.add_(1.0)
    average.update()
    own = module.weight.detach().clone()

    def use() -> None:
        assert torch.equal(module.weight, average.weights("ema")["weight"])
        assert not torch.equal(module.weight, own)
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), average.averaged("ema"):
        use()
    assert torch.equal(module.weight, own)


def test_half_precision_weights_are_averaged_in_float32():
    module = nn.Linear(4, 4, dtype=torch.bfloat16)
    average = EMA(module, every=1, decay=0.999)
    with torch.no_grad():
        module.weight.add_(1.0)
    for _ in range(10):
        average.update()
    assert average.weights()["weight"].dtype == torch.float32
    moved = average.weights()["weight"] - (module.weight - 1.0).float()
    assert torch.allclose(moved, torch.full_like(moved, 1 - 0.999**10), atol=5e-3)
    assert moved.min() > 0


def test_frozen_parameters_are_left_alone_and_state_round_trips():
    module = nn.Linear(3, 3)
    module.bias.requires_grad_(False)
    average = BEMA(module, every=2)
    assert set(average.weights()) == {"weight"}
    for _ in range(5):
        with torch.no_grad():
            module.weight.mul_(1.1)
        average.update()
    other = BEMA(module, every=2)
    other.load_state_dict(average.state_dict())
    for _ in range(3):
        with torch.no_grad():
            module.weight.mul_(0.9)
        assert average.update() == other.update()
    assert torch.equal(average.weights()["weight"], other.weights()["weight"])


def test_agrees_with_trl():
    callbacks = pytest.importorskip("trl.trainer.callbacks")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    theirs = callbacks.BEMACallback(update_freq=3, update_after=4)
    ours = BEMA(model, every=3, burn_in=4)
    state = transformers.TrainerState()
    theirs.on_train_begin(None, state, None, model=model)
    for step in range(1, 40):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        state.global_step = step
        theirs.on_step_end(None, state, None, model=model)
        ours.update(step)
        if step >= 7:  # TRL's copy keeps the initial weights until its first update
            for name, parameter in theirs.running_model.named_parameters():
                assert torch.allclose(parameter, ours.weights("bema")[name], atol=1e-6), (step, name)


@pytest.mark.parametrize("options", [{"every": 0}, {"burn_in": -1}, {"rho": 0.0}, {"decay": 1.0}, {"eta": -0.1}])
def test_impossible_settings(options):
    with pytest.raises(ConfigError):
        BEMA(nn.Linear(2, 2), **options)
    with pytest.raises(ConfigError, match="keeps ema, bema, not 'raw'"):
        BEMA(nn.Linear(2, 2)).weights("raw")
