"""What was exchanged is found by exchanging it again, and every exchange is taken back exactly."""

from itertools import combinations

import pytest
import torch
import transformers

from normlab.probes.inputs.losses import Loss, pick
from normlab.probes.measure.trials.changes import NotPossible, replaced, swapped
from normlab.probes.measure.trials.exchanges import channels, exchanged, last_norms, routed, tokens
from normlab.probes.trace.locate import locate
from tests.probes.measure.trials.test_run import attempt
from tests.probes.zoo import build, inputs


def place(name="llama"):
    model, batch = build(name).eval(), inputs(name)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):  # gains that differ, so that exchanging them matters
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return model, batch, locate(model, lambda: model(**batch))


def swap(one, other):
    with torch.no_grad():
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            kept = a.clone()
            a.copy_(b)
            b.copy_(kept)


def test_every_exchange_changes_the_output_and_is_taken_back_exactly():
    model, batch, layout = place()
    with torch.no_grad():
        plain = model(**batch).logits.clone()
        loss = pick("auto", model, batch)
        found = [
            *exchanged(layout, list(combinations(range(3), 2))),
            *channels(layout, range(3)),
            *last_norms(layout),
            *tokens(layout, batch, [batch], loss),
        ]
        assert len(found) > 20
        for trial in found:
            with trial.changed():
                other = model(**batch).logits
                assert not torch.equal(other, plain) or "tokens" in trial.what, trial.what
            assert torch.equal(model(**batch).logits, plain), trial.what


CASES = {
    "the keys of the layers 0 and 2": lambda m: swap(
        m.model.layers[0].self_attn.k_proj, m.model.layers[2].self_attn.k_proj
    ),
    "the attention of the layers 1 and 2": lambda m: swap(m.model.layers[1].self_attn, m.model.layers[2].self_attn),
    "the FFN of the layers 0 and 1": lambda m: swap(m.model.layers[0].mlp, m.model.layers[1].mlp),
    "the final norm (model.norm) and post_attention_layernorm": lambda m: swap(
        m.model.norm, m.model.layers[2].post_attention_layernorm
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_what_was_exchanged_is_found(what):
    model, batch, layout = place()
    with torch.no_grad():
        goal = model(**batch).logits.clone()
    loss = Loss("as before", lambda m, b: (m(**b).logits - goal).square().mean())
    CASES[what](model)
    best = attempt(layout, batch, [batch] * 4, loss, suspects=range(3))[0]
    assert what in best.what
    assert best.loss + best.change < 1e-9


def test_tokens_whose_followers_are_each_others_are_named_first():
    model, _, layout = place()
    with torch.no_grad():
        said = model(torch.arange(97)[:, None]).logits[:, -1].argmax(-1)
    told = torch.stack([torch.arange(97), said], 1)[:40]  # the model's own answers are the text
    rows = model.get_input_embeddings().weight.data
    one, other = next((i, j) for i in range(40) for j in range(40) if said[i] != said[j])
    kept = rows[one].clone()
    rows[one] = rows[other]
    rows[other] = kept
    with torch.no_grad():
        trials = list(
            tokens(layout, {"input_ids": told}, [{"input_ids": told}], pick("auto", model, {"input_ids": told}))
        )
    assert f"embeddings of tokens {one} and {other}" in trials[0].what or f"{other} and {one}" in trials[0].what


def test_a_router_is_tried_one_expert_on_and_back():
    options = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_local_experts": 4,
    }
    config = transformers.MixtralConfig(**options, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
    model, ids = transformers.MixtralForCausalLM(config).eval(), torch.arange(16)[None]
    found = list(routed(locate(model, lambda: model(ids)), range(2)))
    assert [trial.layers for trial in found] == [(0,), (0,), (1,), (1,)]
    with torch.no_grad():
        plain = model(ids).logits
        for trial in found:
            with trial.changed():
                assert not torch.equal(model(ids).logits, plain)
            assert torch.equal(model(ids).logits, plain)


def test_what_cannot_be_exchanged_is_left_as_it_is():
    """A layer with an adapter, or a weight that is computed from others: no trial, and no crash."""
    plain, longer = torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    before = [p.clone() for p in (*plain.parameters(), *longer.parameters())]
    with pytest.raises(NotPossible), swapped([(plain, longer)])():
        pass
    assert all(torch.equal(a, b) for a, b in zip(before, (*plain.parameters(), *longer.parameters()), strict=True))
    computed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))
    with pytest.raises(NotPossible), replaced(computed, torch.zeros(3, 3))():
        pass


def test_a_model_with_an_adapter_in_one_layer_is_tried_as_far_as_it_goes():
    model, batch, layout = place()
    layers = model.model.layers
    layers[1].mlp.down_proj.up = torch.nn.Linear(2, 2)
    torch.nn.utils.parametrizations.weight_norm(layers[0].self_attn.o_proj)
    loss = pick("auto", model, batch)
    assert isinstance(attempt(layout, batch, [batch], loss, suspects=(0, 1, 2)), tuple)
