"""Readings of weights, heads, experts and outputs against the same numbers computed in the plain way."""

import math

import pytest
import torch
import transformers

from normlab.probes.inputs.hub import eager_attention
from normlab.probes.inputs.losses import pick
from normlab.probes.measure.heads import AttentionStatistics
from normlab.probes.measure.outputs import frequency_loss, read_outputs
from normlab.probes.measure.weights import duplicates, expert_twins, read_weights
from normlab.probes.measure.weights.experts import read_experts
from normlab.probes.measure.weights.gains import read_eps
from normlab.probes.measure.weights.matrices import read_matrix
from normlab.probes.measure.weights.response import read_response
from normlab.probes.trace.locate import locate
from tests.probes.zoo import build, inputs


def place(name):
    model, batch = build(name), inputs(name)
    return model, batch, locate(model, lambda: model(**batch))


# -- weights ------------------------------------------------------------------------------------------------------------
def test_a_low_rank_and_zero_columns_are_read():
    model, batch, layout = place("llama")
    with torch.no_grad():
        matrix = model.model.layers[1].mlp.down_proj.weight
        matrix.copy_(torch.outer(torch.ones(matrix.shape[0]), torch.ones(matrix.shape[1])))
        model.model.layers[2].mlp.down_proj.weight[:, ::4] = 0
    found = {(row.layer, row.name): row for row in read_weights(layout, batch["input_ids"].unique()).matrices}
    assert found[1, "mlp.down_proj.weight"].rank == pytest.approx(1 / 32)
    assert found[0, "mlp.down_proj.weight"].rank > 0.5
    assert found[2, "mlp.down_proj.weight"].quiet == pytest.approx(0.25)
    expected = float(model.model.layers[0].self_attn.q_proj.weight.detach().square().mean().sqrt())
    assert found[0, "self_attn.q_proj.weight"].rms == pytest.approx(expected, rel=1e-5)


def test_gains_are_factors_also_where_they_are_stored_less_one():
    for name in ("llama", "gemma2"):
        model, batch, layout = place(name)
        gains = read_weights(layout, batch["input_ids"].unique()).gains
        assert all(row.median == pytest.approx(1.0) for row in gains)
        assert [row.name for row in gains if row.layer == -1] == ["model.norm"]
    with torch.no_grad():
        norm = model.model.layers[1].input_layernorm
        norm.weight.copy_(torch.cat([torch.full((8,), -3.0), torch.full((24,), 1.0)]))  # factors -2 and 2
    row = next(r for r in read_weights(layout).gains if (r.layer, r.name) == (1, "input_layernorm"))
    assert row.median == pytest.approx(2.0)
    assert row.flipped == pytest.approx(0.25)


def test_copies_are_found_far_apart_too():
    model, _, layout = place("llama")
    assert duplicates(layout) == []
    model.model.layers[2].load_state_dict(model.model.layers[0].state_dict())
    assert [(twin.layer, twin.next) for twin in duplicates(layout)] == [(0, 2)]


def test_rotary_frequencies_are_those_of_the_configuration():
    model, batch, layout = place("llama")
    used = batch["input_ids"].unique()
    assert read_weights(layout, used).embedding.rotary == pytest.approx(0, abs=1e-6)
    model.model.rotary_emb.inv_freq.mul_(2)
    assert read_weights(layout, used).embedding.rotary == pytest.approx(math.log(2), rel=1e-5)


# -- heads --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["llama", "bert", "gpt2"])
def test_heads_add_up_to_what_attention_writes(name):
    """The outputs of single heads, measured by silencing all others."""
    model, batch, layout = place(name)

    def outputs():
        statistics = AttentionStatistics()
        with eager_attention(model), layout.tracer(statistics, weights=True), torch.no_grad():
            model(**batch)
        return [row.output for row in statistics.head_rows() if row.layer == 0], statistics.rows()[0]

    sizes, _ = outputs()
    assert len(sizes) == 4
    out = {"llama": lambda: model.model.layers[0].self_attn.o_proj.weight,
           "bert": lambda: model.bert.encoder.layer[0].attention.output.dense.weight,
           "gpt2": lambda: model.transformer.h[0].attn.c_proj.weight.T}[name]()  # fmt: skip
    with torch.no_grad():
        out[:, 8:] = 0
    alone, row = outputs()
    assert alone[0] == pytest.approx(sizes[0], rel=1e-4)
    assert alone[1:] == pytest.approx([0, 0, 0], abs=1e-6)
    assert row.attention_output_rms is not None


# -- experts ------------------------------------------------------------------------------------------------------------
def test_the_shares_of_experts_are_counted():
    torch.manual_seed(0)
    shape = {
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    config = transformers.MixtralConfig(
        **shape, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, initializer_range=0.2
    )
    model = transformers.MixtralForCausalLM(config).eval()
    batch = inputs("llama")
    layout = locate(model, lambda: model(**batch))
    rows = read_experts(layout, [batch])
    assert len(rows) == 12
    with torch.no_grad():
        logits = model(**batch, output_router_logits=True).router_logits
    for layer, scores in enumerate(logits):
        counts = scores.topk(2, -1).indices.flatten().bincount(minlength=4).double()
        shares = [row.share for row in rows if row.layer == layer]
        assert shares == pytest.approx((counts / counts.sum()).tolist())


# -- outputs ------------------------------------------------------------------------------------------------------------
def test_the_loss_of_frequencies_in_closed_form():
    tokens = torch.tensor([0, 1] * 500)
    assert frequency_loss(tokens, 2) == pytest.approx(math.log(2), rel=1e-2)
    skewed = torch.tensor([0] * 900 + [1] * 100)
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert frequency_loss(skewed, 2) == pytest.approx(entropy, rel=1e-2)
    assert frequency_loss(skewed, 50_000) == pytest.approx(entropy, rel=0.2)  # most of a vocabulary is never seen


def test_outputs_against_the_logits():
    model, batch, layout = place("llama")
    loss = pick("auto", model, batch)
    found = read_outputs(layout, [batch], loss)
    with torch.no_grad():
        logits = model(**batch).logits[:, :-1]
        assert found.loss == pytest.approx(float(loss(model, batch)), rel=1e-5)
        assert found.entropy == pytest.approx(
            float(torch.distributions.Categorical(logits=logits).entropy().mean()), rel=1e-5
        )
    assert found.leak == 0
    encoder, other, where = place("bert")
    masked = read_outputs(where, [other], pick("masked", encoder, other, mask_id=3))
    assert masked.leak is None
    with torch.no_grad():
        assert masked.loss == pytest.approx(float(pick("masked", encoder, other, mask_id=3)(encoder, other)), rel=1e-5)


def test_a_missing_mask_is_seen():
    model, batch, layout = place("llama")

    def hook(_module, args, kwargs):
        return args, {**kwargs, "attention_mask": None, "is_causal": False}

    for layer in model.model.layers:
        layer.self_attn.is_causal = False
        layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True)
    assert read_outputs(layout, [batch], pick("auto", model, batch)).leak > 1e-2


# -- what a matrix is like, and whether it fits ------------------------------------------------------------------------------
def test_noise_has_an_edge_of_one_and_the_tails_of_its_distribution():
    torch.manual_seed(0)
    normal = read_matrix(0, "w", torch.randn(200, 120))
    uniform = read_matrix(0, "w", torch.rand(200, 120) - 0.5)
    assert normal.edge == pytest.approx(1.0, abs=0.05)
    assert uniform.edge == pytest.approx(1.0, abs=0.05)
    assert normal.tails == pytest.approx(3.0, abs=0.15)
    assert uniform.tails == pytest.approx(1.8, abs=0.05)
    assert normal.distinct == 1.0


def test_a_rounded_matrix_has_few_values_and_a_spike_stands_out_of_the_noise():
    torch.manual_seed(0)
    rounded = read_matrix(0, "w", torch.randn(64, 100).clamp(-1, 1).round())
    assert rounded.distinct == pytest.approx(3 / 100)
    spiked = torch.randn(64, 64) + 10 * torch.outer(torch.ones(64), torch.ones(64)) / 8
    rms = float(spiked.square().mean().sqrt())
    expected = float(torch.linalg.svdvals(spiked)[0]) / (rms * 16)
    assert read_matrix(0, "w", spiked).edge == pytest.approx(expected, rel=1e-4)


def test_a_matrix_that_fits_what_it_reads_responds_more_than_noise():
    model, batch, layout = place("llama")
    seen = []
    linear = model.model.layers[1].mlp.down_proj
    handle = linear.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach().flatten(0, 1)))
    model(**batch)
    handle.remove()
    top = torch.linalg.svd(seen[0], full_matrices=False).Vh[0]
    with torch.no_grad():
        linear.weight.copy_(torch.outer(torch.ones(len(linear.weight)), top))
    rows = {(row.layer, row.name): row.response for row in read_response(layout, lambda: model(**batch))}
    singular = torch.linalg.svdvals(seen[0]).square()
    expected = float(singular[0] / singular.sum()) * linear.in_features  # all of W along the first direction
    assert rows[1, "mlp.down_proj"] == pytest.approx(expected, rel=1e-3)


def test_copied_experts_are_found():
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=61, hidden_size=32, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).eval()
    layout = locate(model, lambda: model(torch.arange(8)[None]))
    assert expert_twins(layout) == ()
    experts = model.model.layers[1].mlp.experts
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter[2] = parameter[0]
    assert [(twin.layer, twin.first, twin.second) for twin in expert_twins(layout)] == [(1, 0, 2)]


def test_the_share_of_eps_is_that_of_the_median_token():
    model, batch, layout = place("llama")
    norm = model.model.layers[1].input_layernorm
    seen = []
    handle = norm.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()))
    norm.variance_epsilon = 0.5
    rows = {(row.layer, row.name): row for row in read_eps(layout, lambda: model(**batch))}
    handle.remove()
    size = float(seen[0].square().mean(-1).median())
    assert rows[1, "input_layernorm"].share == pytest.approx(0.5 / (0.5 + size), rel=1e-5)
    assert rows[0, "input_layernorm"].share < 0.01


# -- masks, copies of heads, what is left to chance ---------------------------------------------------------------------
def attention_of(model, batch, layout):
    statistics = AttentionStatistics()
    with eager_attention(model), layout.tracer(statistics, weights=True), torch.no_grad():
        model(**batch)
    return statistics


def test_how_far_a_layer_looks_is_read_from_its_weights():
    model, batch, layout = place("llama")
    length = batch["input_ids"].shape[1]
    rows = attention_of(model, batch, layout).mask_rows([layer for _, layer in layout.layers], model.config)
    assert {(row.back, row.ahead, row.length, row.window) for row in rows} == {(length - 1, 0, length, None)}


def test_the_configured_window_is_what_is_seen():
    model, batch, layout = place("mistral")
    model.config.sliding_window = 3
    rows = attention_of(model, batch, layout).mask_rows([layer for _, layer in layout.layers], model.config)
    assert {row.window for row in rows} == {3}
    assert {row.back for row in rows} == {2}


def test_a_copied_head_is_its_twins_twin():
    model, batch, layout = place("llama")
    part, width = model.model.layers[1].self_attn, model.config.hidden_size // model.config.num_attention_heads
    with torch.no_grad():
        part.o_proj.weight[:, width : 2 * width] = part.o_proj.weight[:, :width]
    rows = {(row.layer, row.head): row for row in attention_of(model, batch, layout).head_rows()}
    assert rows[1, 0].twin == 1
    assert rows[1, 0].twin_cosine == pytest.approx(1.0, abs=1e-5)
    assert max(row.twin_cosine for (layer, _), row in rows.items() if layer != 1) < 0.99


def test_dropout_that_is_left_on_shows_in_two_passes():
    model, batch, layout = place("llama")
    loss = pick("auto", model, batch)
    assert read_outputs(layout, [batch], loss).repeat == 0.0
    model.model.layers[1].mlp.register_forward_hook(lambda _m, _a, out: torch.nn.functional.dropout(out, 0.3))
    assert read_outputs(layout, [batch], loss).repeat > 0.01


def test_a_head_that_reads_the_stream_as_it_is_and_logits_that_are_too_flat():
    model, batch, layout = place("llama")
    loss = pick("auto", model, batch)
    assert read_outputs(layout, [batch], loss).normed is True
    model.model.norm = torch.nn.Identity()
    assert read_outputs(layout, [batch], loss).normed is False
