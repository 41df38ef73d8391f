"""What is tried is undone, and a trial that undoes an accident finds it."""

import pytest
import torch
import transformers

from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.gradients import PullRow
from normlab.probes.measure.trials.run import catalogue, run_trials
from normlab.probes.measure.trials.single import single_layers
from normlab.probes.measure.trials.whole import converted, whole_model
from normlab.probes.trace.locate import locate
from tests.probes.zoo import build, inputs


@pytest.fixture
def llama():
    model, batch = build("llama"), inputs("llama")
    return model, batch, locate(model, lambda: model(**batch))


def attempt(layout, batch, tested, loss, *, suspects=(), pulls=(), **options):
    trials = catalogue(layout, [batch], loss, suspects=suspects, pulls=pulls)
    return run_trials(layout, trials, [batch], tested, loss, **options)


def toward(model, batch):
    """A loss that knows how the model answered before: what undoes an accident brings it back to zero."""
    with torch.no_grad():
        goal = model(**batch).logits.clone()
    return Loss("as before", lambda m, b: (m(**b).logits - goal).square().mean())


def test_every_trial_changes_the_output_and_is_taken_back_exactly(llama):
    model, batch, layout = llama
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        plain = model(**batch).logits.clone()
        trials = [*whole_model(layout), *single_layers(layout, range(3))]
        assert len(trials) > 20
        for trial in trials:
            with trial.changed():
                assert not torch.equal(model(**batch).logits, plain), trial.what
            assert torch.equal(model(**batch).logits, plain), trial.what
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def swap_gates(model):
    for layer in model.model.layers:
        gate, up = layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight
        kept = gate.clone()
        gate.copy_(up)
        up.copy_(kept)


def displace_heads(model):
    weight = model.model.layers[1].self_attn.o_proj.weight
    weight.copy_(weight.roll(weight.shape[1] // model.config.num_attention_heads, 1))


def swap_layers(model):
    first, second = (model.model.layers[i].state_dict() for i in (0, 2))
    kept = {name: value.clone() for name, value in first.items()}
    model.model.layers[0].load_state_dict(second)
    model.model.layers[2].load_state_dict(kept)


def tile_heads(model):
    order = torch.arange(4).reshape(-1, model.config.num_key_value_heads).T.flatten()
    for layer in model.model.layers:
        query, out = layer.self_attn.q_proj.weight, layer.self_attn.o_proj.weight
        query.copy_(query.reshape(4, -1, query.shape[1])[order].reshape(query.shape))
        out.copy_(out.reshape(out.shape[0], 4, -1)[:, order].reshape(out.shape))


def interleave(model):
    for layer in model.model.layers:
        for weight in (layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight):
            heads = weight.reshape(-1, 2, 4, weight.shape[1])  # halves of eight coordinates
            weight.copy_(heads.transpose(1, 2).reshape(weight.shape))


def sum_twice(model):
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(2)
        layer.mlp.down_proj.weight.mul_(2)


def swap_shards(model):
    weight = model.model.layers[1].mlp.down_proj.weight
    weight.copy_(weight.roll(weight.shape[1] // 2, 1))


def lose_one(model):
    for layer in model.model.layers:
        layer.input_layernorm.weight.sub_(1)
        layer.post_attention_layernorm.weight.sub_(1)


def turn_round(model):
    model.model.layers[2].mlp.down_proj.weight.mul_(-1)


def shrink_embedding(model):
    model.model.embed_tokens.weight.mul_(0.1)


def loud_gain(model):
    model.model.layers[1].input_layernorm.weight.mul_(30)


@pytest.mark.parametrize(
    ("accident", "what", "layers"),
    [
        (swap_gates, "with gate and up exchanged in every layer", ()),
        (displace_heads, "with the heads of layer 1 one place back", (1,)),
        (swap_layers, "with layers 0 and 2 exchanged", (0, 2)),
        (turn_round, "with the FFN of layer 2 turned round", (2,)),
        (loud_gain, "with the gain of input_layernorm in layer 1 as in its neighbours", (1,)),
        (tile_heads, "with the heads regrouped, as if keys had been tiled", ()),
        (interleave, "with rotary pairs taken as halves", ()),
        (sum_twice, "with all branches times 0.5", ()),
        (swap_shards, "with the halves of the FFN's second matrix of layer 1 exchanged", (1,)),
        (lose_one, "with 1 added to every gain", ()),
        (shrink_embedding, "with the embedding times 10", ()),
    ],
)
def test_the_trial_that_undoes_the_accident_gains_most(llama, accident, what, layers):
    model, batch, layout = llama
    loss = toward(model, batch)
    with torch.no_grad():
        accident(model)
        broken = float(loss(model, batch))
    rows = attempt(layout, batch, [batch, batch], loss, suspects=range(3), least=0.0)
    assert rows[0].what == what
    assert rows[0].layers == layers
    assert rows[0].change == pytest.approx(-broken, rel=1e-3)
    assert rows[0].loss == pytest.approx(broken, rel=1e-5)
    assert rows[0].error == pytest.approx(0.0, abs=1e-7)


def test_a_model_that_is_as_it_should_be_gains_by_nothing(llama):
    model, batch, layout = llama
    assert attempt(layout, batch, [batch], toward(model, batch), suspects=range(3)) == ()


def test_no_more_experts_are_tried_than_there_are():
    """A router that takes all of its experts has none to add."""
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_local_experts": 4,
        "vocab_size": 97,
    }
    config = transformers.MixtralConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, num_experts_per_tok=2)
    model, batch = transformers.MixtralForCausalLM(config).eval(), inputs("llama")
    routers = [m for m in model.modules() if isinstance(getattr(m, "top_k", None), int)]
    for router in routers:  # some are blocks that hold one
        router.top_k = 4
    layout = locate(model, lambda: model(**batch))
    tried = [trial for trial in converted(layout) if "experts a token" in trial.what]
    assert [trial.what for trial in tried] == ["with 3 experts a token"]
    with torch.no_grad(), tried[0].changed():
        assert model(**batch).logits.isfinite().all()
    assert {router.top_k for router in routers} == {4}


def test_a_larger_step_is_tried_only_where_a_milder_one_gained(llama):
    """A gain that is eight times too large is found by way of smaller steps; one that is right costs one pass."""
    model, batch, layout = llama
    loss, passes = toward(model, batch), []
    counted = Loss("counted", lambda m, b: (passes.append(1), loss.function(m, b))[1])
    pulls = [PullRow(i, "input_layernorm.weight", 1.0) for i in range(3)]
    attempt(layout, batch, [batch], counted)
    alone = len(passes)
    attempt(layout, batch, [batch], counted, pulls=pulls)
    assert len(passes) - 2 * alone == 1
    with torch.no_grad():
        for layer in model.model.layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.weight.mul_(8)
        found = attempt(layout, batch, [batch], loss, pulls=pulls)
    assert "with all gains times 0.125" in [row.what for row in found]


def test_what_wrecks_a_few_tokens_is_not_tried_on_all(llama):
    model, batch, layout = llama
    loss, lengths = toward(model, batch), []

    def known(m, b):
        lengths.append(b["input_ids"].shape[1])
        return 100 * loss.function(m, batch)

    few = {"input_ids": batch["input_ids"][:, :4]}
    attempt(layout, batch, [batch], Loss("known", known), glance=few)
    assert lengths.count(4) > 10 > len(lengths) - lengths.count(4)
    with torch.no_grad():
        swap_gates(model)
        whole = Loss("of all tokens", lambda m, b: loss.function(m, batch))
        seen = [attempt(layout, batch, [batch], whole, glance=glance) for glance in (None, few)]
    assert seen[0][0].what == seen[1][0].what
