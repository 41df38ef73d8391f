"""What branches do is read from outside, and an architecture as it was built shows none of it."""

import pytest
import torch

from normlab.probes.inputs.losses import HiddenAnew, pick
from normlab.probes.measure.outputs import read_outputs
from normlab.probes.measure.weights import matrix_twins, read_weights
from normlab.probes.measure.weights.functions import read_functions
from normlab.probes.measure.weights.gains import read_eps
from normlab.probes.trace.locate import locate
from normlab.probes.trace.structure.settings import read_settings
from tests.probes.zoo import ARCHITECTURES, build, inputs


def place(name):
    model, batch = build(name), inputs(name)
    return model, batch, locate(model, lambda: model(**batch))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_as_it_was_built_shows_nothing(name):
    model, batch, layout = place(name)
    tokens, repeats = read_functions(layout, lambda: model(**batch))
    assert all(row.mixing < 1e-3 for row in tokens)
    assert repeats == ()
    assert matrix_twins(layout) == ()
    assert read_settings(layout) == ()
    assert all(row.misfit is None or row.misfit < 1e-3 for row in read_eps(layout, lambda: model(**batch)))


def test_an_ffn_that_mixes_tokens_is_seen():
    model, batch, layout = place("llama")
    model.model.layers[1].mlp.register_forward_hook(lambda _module, _args, output: output.roll(1, 1))
    tokens, _ = read_functions(layout, lambda: model(**batch))
    assert [row.layer for row in tokens if row.mixing > 0.1] == [1]


def test_a_branch_that_repeats_another_is_seen():
    model, batch, layout = place("llama")
    kept = {}
    model.model.layers[0].mlp.register_forward_hook(lambda _module, _args, output: kept.update(y=output))
    model.model.layers[2].mlp.register_forward_hook(lambda _module, _args, _output: kept["y"])
    _, (repeat,) = read_functions(layout, lambda: model(**batch))
    assert (repeat.kind, repeat.layer, repeat.next) == ("ffn", 0, 2)


def test_a_norm_that_does_not_norm_is_seen():
    model, batch, layout = place("llama")
    model.model.layers[1].input_layernorm.register_forward_hook(lambda _module, _args, output: 4 * output)
    model.model.layers[2].input_layernorm.register_forward_hook(lambda module, args, _output: args[0] * module.weight)
    rows = {(row.layer, row.name): row for row in read_eps(layout, lambda: model(**batch))}
    assert rows[1, "input_layernorm"].size == pytest.approx(4.0, rel=1e-4)
    assert rows[1, "input_layernorm"].misfit == pytest.approx(3.0, rel=1e-4)
    assert rows[2, "input_layernorm"].misfit > 0.05
    assert rows[0, "input_layernorm"].misfit < 1e-4


def test_a_matrix_that_two_layers_hold_is_found_and_a_shared_one_is_not():
    model, _, layout = place("llama")
    layers = model.model.layers
    layers[2].mlp.down_proj.weight.data.copy_(layers[0].mlp.down_proj.weight)
    (twin,) = matrix_twins(layout)
    assert (twin.name, twin.layer, twin.next) == ("mlp.down_proj.weight", 0, 2)
    layers[2].mlp.down_proj.weight = layers[0].mlp.down_proj.weight
    assert matrix_twins(layout) == ()


def test_an_activation_or_a_number_that_one_layer_has_is_seen():
    model, _, layout = place("llama")
    model.model.layers[1].mlp.act_fn = torch.nn.Identity()
    model.model.layers[2].input_layernorm.variance_epsilon = 0.1
    found = {(row.layer, row.name): row.value for row in read_settings(layout)}
    assert found[1, "mlp.act_fn"] == "Identity"
    assert found[2, "input_layernorm.variance_epsilon"] == "0.1"
    assert {name for _, name in found} == {"mlp.act_fn", "input_layernorm.variance_epsilon"}


def test_rows_that_are_the_same_and_coordinates_that_no_row_uses():
    model, _, layout = place("llama")
    used = torch.arange(1, 21)  # row 0 is the padding, and zero
    assert (read_weights(layout, used).embedding.equal, read_weights(layout, used).embedding.empty) == (0.0, 0.0)
    with torch.no_grad():
        model.model.embed_tokens.weight[3] = model.model.embed_tokens.weight[4]
        model.model.embed_tokens.weight[:, :8] = 0
    found = read_weights(layout, used).embedding
    assert found.equal == pytest.approx(0.1)
    assert found.empty == pytest.approx(8 / 32)


def test_where_the_future_comes_in_is_named():
    model, batch, layout = place("llama")
    model.model.layers[1].mlp.register_forward_hook(lambda _module, _args, output: output.roll(1, 1))
    found = read_outputs(layout, [batch], pick("auto", model, batch))
    assert found.leak > 1e-3
    assert (found.leak_layer, found.leak_part) == (1, "ffn")
    model, batch, layout = place("llama")
    model.model.embed_tokens.register_forward_hook(lambda _module, _args, output: output.roll(-1, 1))
    found = read_outputs(layout, [batch], pick("auto", model, batch))
    assert found.leak > 1e-3
    assert found.leak_layer is None


def test_every_draw_hides_other_tokens():
    model, batch, _ = place("bert")
    loss = pick("masked", model, batch, mask_id=3)
    hidden = [loss.targets(HiddenAnew(batch, draw))[2] for draw in (0, 0, 1)]
    assert torch.equal(hidden[0], hidden[1])
    assert torch.equal(hidden[0], loss.targets(batch)[2])
    assert not torch.equal(hidden[0], hidden[2])


def test_an_ffn_that_is_handed_more_than_the_stream_is_left_alone():
    """DeepSeek-V4's first routers read token ids beside it: without them the second call would end in an error."""
    model, batch, layout = place("llama")
    mlp = model.model.layers[1].mlp
    plain, tokens = mlp.forward, batch["input_ids"]
    mlp.forward = lambda x, ids: plain(x) + 0 * ids[..., None]
    model.model.layers[1].mlp.register_forward_pre_hook(lambda _m, a, k: (a, {**k, "ids": tokens}), with_kwargs=True)
    found, _ = read_functions(layout, lambda: model(**batch))
    assert [row.layer for row in found] == [0, 2]


def test_a_gain_that_is_a_buffer_is_read_too():
    """FalconMamba's norms have one that is not trained."""
    model, batch, layout = place("llama")
    norm = model.model.layers[1].input_layernorm
    weight = norm.weight.detach().clone()
    del norm.weight
    norm.register_buffer("weight", weight)
    rows = {(row.layer, row.name): row for row in read_eps(layout, lambda: model(**batch))}
    assert rows[1, "input_layernorm"].misfit < 1e-4
