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


def useless(model, layer):
    """A layer that adds nothing."""
    with torch.no_grad():
        model.model.layers[layer].self_attn.o_proj.weight.zero_()
        model.model.layers[layer].mlp.down_proj.weight.zero_()
    return model


def test_the_choice_finds_a_layer_that_does_nothing():
    for layer in range(3):
        model = useless(build("llama"), layer)
        batches = [inputs("llama", seed=seed) for seed in range(3)]
        found = choose(model, batches, max_loss=1e-6)
        assert [choice.layer for choice in found][:1] == [layer]
        assert found[0].change == 0.0
        assert found[0].error == 0.0
        report = nl.prune(model, batches=batches, most=1)
        assert report.removed == (layer,)
        assert report.loss_after == pytest.approx(report.loss_before)


def test_a_diagnosis_gives_the_order():
    model = useless(build("llama"), 1)
    batches = [inputs("llama", seed=seed, tokens=24)["input_ids"] for seed in range(2)]
    found = nl.diagnose(model, batches)
    report = nl.prune(model, from_=found, most=1, batches=batches)
    assert report.removed == (1,)


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
