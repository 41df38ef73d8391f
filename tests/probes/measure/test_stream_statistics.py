"""Streaming statistics and gradients against the same numbers computed in the plain way."""

import gc
import weakref

import pytest
import torch

from normlab.probes.diagnose import diagnose
from normlab.probes.inputs.losses import pick
from normlab.probes.measure import gradients, metrics
from normlab.probes.measure.heads import AttentionStatistics
from normlab.probes.measure.stream import StreamStatistics
from normlab.probes.trace.hooks import Tracer
from normlab.probes.trace.locate import locate
from tests.probes.zoo import ARCHITECTURES, build, inputs


def streamed(model, batches):
    layout = locate(model, lambda: model(**batches[0]))
    statistics = StreamStatistics()
    with Tracer(layout, statistics), torch.no_grad():
        for batch in batches:
            model(**batch)
    return statistics


def test_against_hidden_states():
    model = build("llama")
    batches = [inputs("llama", seed=s) for s in (0, 1)]
    rows = streamed(model, batches).rows()
    with torch.no_grad():
        states = [model(**b, output_hidden_states=True).hidden_states for b in batches]
    for layer in (0, 1):  # the last hidden state is behind the final norm
        pairs = [(s[layer], s[layer + 1]) for s in states]
        mean = lambda values: sum(float(v) for v in values) / 2  # noqa: E731
        assert rows[layer].norm == pytest.approx(mean(b.norm(dim=-1).mean() for _, b in pairs), rel=1e-5)
        assert rows[layer].block_influence == pytest.approx(mean(metrics.block_influence(*p) for p in pairs), abs=1e-6)
        assert rows[layer].token_cosine == pytest.approx(
            mean(metrics.token_cosine(b).mean() for _, b in pairs), abs=1e-5
        )
        assert rows[layer].max_magnitude == pytest.approx(max(float(b.abs().max()) for _, b in pairs))
        angle = mean(metrics.angular_distance(a[:, -1], b[:, -1]).mean() for a, b in pairs)
        assert rows[layer].angular_distance == pytest.approx(angle, rel=1e-4)


def test_contributions_of_a_layer_by_hand():
    model, batch = build("gemma2"), inputs("gemma2")
    row = streamed(model, [batch]).rows()[0]
    with torch.no_grad():
        caught = {}
        layer = model.model.layers[0]
        layer.register_forward_pre_hook(
            lambda m, a, k: caught.update(x=a[0] if a else k["hidden_states"]), with_kwargs=True
        )
        layer.post_attention_layernorm.register_forward_hook(lambda m, a, out: caught.update(a=out))
        layer.post_feedforward_layernorm.register_forward_hook(lambda m, a, out: caught.update(m=out))
        model(**batch)
    x, a, m = caught["x"], caught["a"], caught["m"]
    assert row.attention_ratio == pytest.approx(float((a.norm(dim=-1) / x.norm(dim=-1)).mean()), rel=1e-5)
    assert row.ffn_ratio == pytest.approx(float((m.norm(dim=-1) / (x + a).norm(dim=-1)).mean()), rel=1e-5)
    assert row.ffn_cosine == pytest.approx(float(metrics.cosine(m, x + a).mean()), abs=1e-5)


def test_nothing_is_kept_of_a_layer_when_the_next_one_ends():
    model, batch = build("gpt2"), inputs("gpt2")
    layout = locate(model, lambda: model(**batch))
    statistics, earlier, alive = StreamStatistics(), [], []

    def watch(record):
        gc.collect()
        alive.extend(reference() is not None for reference in earlier[:-1])  # the last one feeds this layer
        statistics(record)
        earlier[:] = [*earlier, *(weakref.ref(part.added) for part in record.parts)][-4:]

    model.config.use_cache = False
    with Tracer(layout, watch), torch.no_grad():
        model(**batch)
    assert len(alive) == 1 + 3
    assert not any(alive)


@pytest.mark.parametrize("name", ["llama", "bert", "opt", "t5_encoder"])
def test_gradients_against_backward(name):
    model, batch = build(name), inputs(name)
    layout = locate(model, lambda: model(**batch))
    loss = pick("auto", model, batch, mask_id=3) or pick(lambda m, b: m(**b)[0][..., :5].pow(2).mean(), model, batch)
    measured = gradients.measure(layout, [batch], loss)
    rows, value = measured.rows, measured.loss
    assert all(p.grad is None for p in model.parameters())
    expected = loss(model, batch)
    expected.backward()
    assert value == pytest.approx(float(expected.detach()), rel=1e-6)
    for row, (_, layer) in zip(rows, layout.layers, strict=True):
        total = sum(float(p.grad.double().square().sum()) for p in layer.parameters()) ** 0.5
        assert row.gradient_norm == pytest.approx(total, rel=1e-5)
        assert 0 < row.attention_gradient < total
        assert 0 < row.ffn_gradient < total
        assert row.stream_gradient > 0


def test_the_pull_is_the_derivative_of_scaling_a_parameter():
    model, batch = build("llama").double(), inputs("llama")
    layout = locate(model, lambda: model(**batch))
    loss = pick("auto", model, batch)
    pulls = {(row.layer, row.name): row.pull for row in gradients.measure(layout, [batch], loss).pulls}
    weight, step = model.model.layers[1].mlp.down_proj.weight, 1e-2
    values = []
    with torch.no_grad():
        for factor in (1 + step, 1 - step):
            kept = weight.clone()
            weight.mul_(factor)
            values.append(float(loss(model, batch)))
            weight.copy_(kept)
    expected = (values[0] - values[1]) / (2 * step)
    assert pulls[1, "mlp.down_proj.weight"] == pytest.approx(expected, rel=5e-3)  # the loss itself is in float32


def test_gradients_are_of_the_mean_loss_over_batches():
    model = build("llama")
    batches = [inputs("llama", seed=s) for s in (0, 1)]
    layout = locate(model, lambda: model(**batches[0]))
    loss = pick("auto", model, batches[0])
    rows = gradients.measure(layout, batches, loss).rows
    whole = {"input_ids": torch.cat([b["input_ids"] for b in batches])}
    together = gradients.measure(layout, [whole], loss).rows
    assert [r.gradient_norm for r in rows] == pytest.approx([r.gradient_norm for r in together], rel=1e-4)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in ("vit",)])
def test_attention_weights_are_found_in_every_architecture(name):
    from normlab.probes.inputs.hub import eager_attention

    model, batch = build(name), inputs(name)
    layout = locate(model, lambda: model(**batch))
    statistics = AttentionStatistics()
    with eager_attention(model), Tracer(layout, statistics, weights=True), torch.no_grad():
        model(**batch)
    rows = statistics.rows()
    assert len(rows) == 3
    assert all(0 < row.entropy <= 1 + 1e-5 and 0 < row.max_weight <= 1 + 1e-5 for row in rows)


def test_eager_weights_and_computed_weights_agree():
    model, batch = build("llama"), inputs("llama")
    layout = locate(model, lambda: model(**batch))
    from normlab.probes.inputs.hub import eager_attention

    returned, computed = AttentionStatistics(), AttentionStatistics()
    with eager_attention(model) as switched, Tracer(layout, returned, weights=True), torch.no_grad():
        model(**batch)
    assert switched
    with Tracer(layout, computed, weights=True), torch.no_grad():
        model(**batch)
    for a, b in zip(returned.rows(), computed.rows(), strict=True):
        assert a.entropy == pytest.approx(b.entropy, rel=1e-5)
        assert a.sink_mass == pytest.approx(b.sink_mass, rel=1e-5)


def test_the_model_is_left_as_it_was():
    model, batch = build("llama").train(), inputs("llama")
    before = {name: p.clone() for name, p in model.named_parameters()}
    model.model.layers[0].eval()
    diagnose(model, [batch], lengths=(8,))
    assert model.training
    assert not model.model.layers[0].training
    assert model.config.use_cache
    assert model.config._attn_implementation == "sdpa"
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())


def test_images_and_a_loss_of_ones_own():
    model, batch = build("vit"), inputs("vit")
    found = diagnose(model, [batch], loss=lambda m, b: m(**b).last_hidden_state.pow(2).mean())
    assert len(found.layers) == 3
    assert found.layers[0].gradient_norm > 0
    assert found.causal is not None
    assert not found.causal.informative
    assert diagnose(model, [batch], skips=False).loss.name == "contrastive"
