"""nl.prune: a pruned model reloads as the model that passes those layers by, and its config is in step."""

import pytest
import torch

import normlab as nl
from normlab.errors import ConfigError, InputError, UnsupportedError
from normlab.surgery.anatomy import anatomy
from normlab.surgery.heal import Heal, neighbours
from normlab.surgery.prune import choose, passed_by
from tests.surgery.models import BACKBONES, asked, build, inputs, swapped

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _quiet():
    from normlab.probes.inputs.hub import quiet

    with quiet():
        yield


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "t5_encoder"])
def test_a_pruned_model_reloads_as_the_one_that_passes_by(name, tmp_path):
    model, batch = build(name), inputs(name)
    with passed_by(anatomy(model), [0, 2]):
        wanted = asked(model, batch)
    report = nl.prune(model, [0, 2], batches=[batch])
    assert report.difference == 0.0
    assert torch.equal(asked(model, batch), wanted)
    model.save_pretrained(tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.equal(asked(again, batch), wanted)
    assert again.config.num_hidden_layers == len(report.kept)


def test_masks_follow_their_layers():
    """Gemma 3 with one full and two sliding layers: the wrong mask at a layer would show at 24 tokens and a window of 8."""
    model, batch = build("gemma3"), inputs("gemma3", tokens=24)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = transformers.Gemma3TextConfig(**{**model.config.to_dict(), "layer_types": kinds})
    model = transformers.Gemma3ForCausalLM(config).eval()
    with passed_by(anatomy(model), [0]):
        wanted = asked(model, batch)
    nl.prune(model, [0], batches=[batch])
    assert model.config.layer_types == ["full_attention", "sliding_attention"]
    assert torch.equal(asked(model, batch), wanted)


def test_gpt2_whose_scores_depend_on_the_layers_number():
    config = transformers.GPT2Config(
        vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=64, scale_attn_by_inverse_layer_idx=True,
        initializer_range=0.2, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model, batch = transformers.GPT2LMHeadModel(config).eval(), inputs("gpt2")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    # Rescaled queries round differently: the strict comparison refuses, and says so, rather than give nearly the same.
    with passed_by(anatomy(model), [0]):
        wanted = asked(model, batch)
    try:
        nl.prune(model, [0], batches=[batch])
    except UnsupportedError:
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    else:
        torch.testing.assert_close(asked(model, batch), wanted)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"layers": [3]}, ConfigError, "there is no layer 3: this model has 3, counted from 0 to 2"),
        ({"layers": [-1]}, ConfigError, "there is no layer -1"),
        ({"layers": [0, 1, 2]}, ConfigError, "all 3 layers of the model: leave at least one"),
        ({"layers": [1, 1]}, ConfigError, "named twice"),
        ({"layers": 1}, ConfigError, "list of whole numbers, such as .*, but got 1"),
        ({"layers": ["1"]}, ConfigError, "list of whole numbers"),
        ({"layers": [1], "most": 1}, ConfigError, "give one or the other"),
        ({"layers": []}, ConfigError, "nothing to take out"),
        ({}, ConfigError, "say which layers"),
        ({"most": 3}, ConfigError, "of which 1 to 2 can be taken out"),
        ({"most": 1, "batches": None}, InputError, "pass batches="),
        ({"most": 1, "from_": "a page"}, InputError, "no diagnosis of this model"),
        ({"layers": [1], "batches": None, "heal": Heal(["some"])}, InputError, "healing is judged"),
    ],
)  # fmt: skip
def test_bad_input_leaves_the_model_as_it_is(arguments, error, says):
    model = build("llama")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(error, match=says):
        nl.prune(model, **{"batches": [inputs("llama")], **arguments})
    assert len(model.model.layers) == model.config.num_hidden_layers == 3
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_config_that_lies_about_layers_is_found(monkeypatch):
    """If the reloaded model differs, nothing has changed."""
    from normlab.surgery import cut as room

    model, batch = build("gemma3"), inputs("gemma3", tokens=24)
    before = asked(model, batch)

    def forgets(config, kept, depth):
        config.num_hidden_layers = len(kept)
        config.layer_types = ["full_attention"] * len(kept)

    monkeypatch.setattr(room, "cut_config", forgets)
    with pytest.raises(UnsupportedError, match="nothing was changed"):
        nl.prune(model, [0], batches=[batch])
    assert torch.equal(asked(model, batch), before)


def test_a_swapped_model_is_folded_first():
    with pytest.raises(UnsupportedError, match=r"nl\.fold it, prune it"):
        nl.prune(swapped("llama", "attn_res"), [0])


def costs_of(model, batches):
    """Without each layer alone, by hand: the mean change of the loss, and its standard error."""
    from normlab.probes.inputs.losses import pick

    loss, body = pick("auto", model, batches[0]), anatomy(model)
    found = []
    with torch.no_grad():
        before = [float(loss(model, batch)) for batch in batches]
        for layer in range(len(body.layers)):
            with passed_by(body, [layer]):
                after = [float(loss(model, batch)) for batch in batches]
            changes = torch.tensor([a - b for a, b in zip(after, before, strict=True)], dtype=torch.float64)
            found.append((float(changes.mean()), float(changes.std() / len(batches) ** 0.5)))
    return found


def test_the_choice_is_the_layer_that_the_loss_misses_least():
    batches = [inputs("llama", seed=seed) for seed in range(3)]
    for seed in range(3):
        model = build("llama", seed=seed)
        costs = costs_of(model, batches)
        best = min(range(3), key=lambda layer: costs[layer][0])
        (first, second) = choose(model, batches, most=2)
        assert first.layer == best
        assert (first.change, first.error) == pytest.approx(costs[best], abs=1e-6)
        assert second.layer != best
        report = nl.prune(model, batches=batches, most=1)
        assert report.removed == (best,)
        assert report.loss_after - report.loss_before == pytest.approx(first.change, abs=1e-5)


def test_a_layer_that_does_nothing_costs_nothing():
    model, batches = build("llama"), [inputs("llama", seed=seed) for seed in range(3)]
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
        model.model.layers[1].mlp.down_proj.weight.zero_()
    assert costs_of(model, batches)[1] == (0.0, 0.0)
    report = nl.prune(model, [1], batches=batches)
    assert report.loss_after == report.loss_before


def test_max_loss_counts_the_error_bar():
    """What a layer costs at most, with 95 % confidence, decides; not its mean."""
    model, batches = build("llama"), [inputs("llama", seed=seed) for seed in range(3)]
    mean, error = min(costs_of(model, batches))
    assert error > 0
    assert choose(model, batches, max_loss=mean + 100 * error + 100)
    if mean + error > 0:
        assert not choose(model, batches, max_loss=mean + error)  # t of two degrees of freedom is 4.3


def test_a_diagnosis_gives_the_order():
    from types import SimpleNamespace

    model, batches = build("llama"), [inputs("llama", seed=seed) for seed in range(2)]
    skips = SimpleNamespace(change=(0.3, 0.1, 0.2), error=(0.0, 0.5, 0.0), batches=4)
    report = nl.prune(model, from_=SimpleNamespace(causal=skips), most=2, batches=batches)
    assert report.removed == (0, 2)  # layer 1 has the least mean, and an error that says nothing of it
    real = nl.diagnose(build("llama"), [batch["input_ids"] for batch in batches])
    assert len(nl.prune(build("llama"), from_=real, most=1, batches=batches).removed) == 1


def test_neighbours_of_gaps():
    assert neighbours([0, 1, 4, 5], 6) == [1, 2]
    assert neighbours([1, 2, 3], 4) == [0]
    assert neighbours([0, 1], 4) == [1]
    assert neighbours([0, 2, 4], 5) == [0, 1, 2]


def test_healing_lowers_the_loss_and_touches_the_neighbours_only():
    model = build("llama")
    train, held_out = [[inputs("llama", seed=seed, batch=8)["input_ids"] % 7 + 5] for seed in (0, 1)]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    report = nl.prune(model, [1], batches=held_out, heal=Heal(train, steps=30, lr=1e-3))
    assert report.loss_healed < report.loss_after
    after = model.state_dict()
    moved = {key for key in after if "layers" not in key and not torch.equal(after[key], before[key])}
    assert not moved
    assert not torch.equal(after["model.layers.0.mlp.down_proj.weight"], before["model.layers.0.mlp.down_proj.weight"])
    assert all(parameter.requires_grad for parameter in model.parameters())
