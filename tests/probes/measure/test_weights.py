"""Weights that are no numbers, and neighbours that are copies."""

import math

import pytest
import torch

import normlab as nl
from normlab.probes.measure.weights import duplicates, nonfinite_weights, read_weights, scale_twins
from normlab.probes.measure.weights.gains import norms_of
from normlab.probes.trace.locate import locate
from tests.probes.zoo import Encoder, build


def test_parameters_that_are_no_numbers_are_named():
    model = Encoder(norm_first=True)
    assert nonfinite_weights(model) == []
    with torch.no_grad():
        model.head.weight[1, 2] = math.inf
        model.embed.weight[0, 0] = math.nan
    assert nonfinite_weights(model) == ["embed.weight", "head.weight"]


def test_a_copy_is_found_whatever_its_scale_and_a_layer_that_only_resembles_is_not():
    model = build("llama")
    layers = model.model.layers
    assert duplicates(locate(model, lambda: None)) == []
    layers[2].load_state_dict({name: 3 * value for name, value in layers[1].state_dict().items()})
    (twin,) = duplicates(locate(model, lambda: None))
    assert (twin.layer, twin.next) == (1, 2)
    assert twin.cosine == pytest.approx(1, abs=1e-12)
    with torch.no_grad():
        for parameter in layers[2].parameters():
            parameter.add_(parameter.std() * torch.randn_like(parameter) if parameter.dim() > 1 else 0)
    assert duplicates(locate(model, lambda: None)) == []  # cosine about 0.7


def test_one_module_applied_often_is_a_design():
    model = build("albert")
    assert duplicates(locate(model, lambda: model(torch.ones(1, 4, dtype=torch.long)))) == []


@pytest.mark.parametrize("scheme", ["pre_norm", "peri_norm", "post_norm", "block_attn_res", "siamese_norm"])
def test_norms_that_a_scheme_owns_belong_to_the_layers_of_their_branches(scheme):
    """In our own models the scheme has the norms, in lists; a gain of layer 2 must not be one behind the last layer."""
    config = nl.TransformerConfig(vocab_size=11, dim=16, depth=4, heads=2, scheme=scheme)
    model = nl.Transformer(config)
    layout = locate(model, torch.arange(8).view(1, 8))
    lists = {name.partition(".")[0] for name, _ in norms_of(model.scheme) if "." in name}
    for group in lists:
        norms = getattr(model.scheme, group)
        for site in model.sites:
            norms[site.index].weight.data.fill_(site.layer)
    rows = [row for row in read_weights(layout).gains if row.layer >= 0]
    assert len(rows) == len(lists) * len(model.sites)
    assert all(row.median == row.layer + 1 for row in rows)


def test_rows_scaled_as_in_another_layer_are_seen_and_rows_of_one_length_are_a_design():
    model = build("llama")
    layout = locate(model, lambda: None)
    assert scale_twins(layout) == ()
    one, other = (model.model.layers[i].mlp.up_proj.weight.data for i in (0, 2))
    one.mul_(other.norm(dim=1, keepdim=True) / one.norm(dim=1, keepdim=True))
    (twin,) = scale_twins(layout)
    assert (twin.name, twin.layer, twin.next) == ("mlp.up_proj.weight", 0, 2)
    for matrix in (one, other):
        matrix.div_(matrix.norm(dim=1, keepdim=True))
    assert scale_twins(layout) == ()


def test_positions_that_repeat_are_no_positions():
    model = build("gpt2")
    table = model.transformer.wpe.weight
    ids = torch.arange(20)
    layout = locate(model, lambda: None)
    assert read_weights(layout, ids).embedding.positions == 0
    with torch.no_grad():
        table[34:] = table[34]
    assert read_weights(layout, ids).embedding.positions == pytest.approx(30 / 62, abs=0.02)
