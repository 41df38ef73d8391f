"""Dominance and gradients of sources, at the start (where the answer is known), by finite differences, and planted."""

import pytest
import torch

import normlab as nl
from normlab.errors import UnsupportedError
from normlab.observe.depth_weights import dominance, source_gradients, sources_of


def made(scheme, spread=0.0):
    torch.manual_seed(0)
    model = nl.Transformer(
        nl.TransformerConfig(vocab_size=11, dim=16, depth=3, heads=2, scheme=scheme, init_std=0.3)
    ).double()
    with torch.no_grad():
        model.scheme.queries.normal_(std=spread)
    return model, torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("scheme", ["attn_res", "attn_res(key_norm=false)"])
def test_at_the_start_nothing_moves(scheme):
    model, tokens = made(scheme)
    found = dominance(model, tokens)
    assert found.moved == found.dominant == 0.0
    shares = source_gradients(model, tokens, tokens)
    assert shares.others == pytest.approx(1.0, abs=1e-12)
    assert shares.top == pytest.approx(1.0, abs=1e-12)


def test_a_norm_on_the_keys_is_what_stops_a_large_source():
    """Exactly: RMSNorm takes the scale away (up to its eps). Without it the weight follows the size."""
    model, tokens = made("attn_res", spread=1.0)
    assert dominance(model, tokens).moved < 1e-3
    model, tokens = made("attn_res(key_norm=false)", spread=3.0)
    found = dominance(model, tokens)
    assert found.moved > 0.1
    assert found.dominant > 0.05


def test_weights_are_those_of_the_model():
    model, tokens = made("attn_res", spread=0.5)
    parts = model.depth_mixing_parts(tokens)
    sources = sources_of(model, tokens)
    assert torch.allclose(sources, parts.sources)
    for read in (1, 3, 6):
        alpha = torch.softmax(model.scheme.logits(sources[: read + 1], read), 0).squeeze(-1)
        assert torch.allclose(alpha.movedim(0, -1), parts.matrix[:, :, read, : read + 1], atol=1e-12)


def test_a_sharp_query_takes_the_gradient_from_the_others():
    plain, sharp = made("attn_res", spread=0.01), made("attn_res", spread=3.0)
    assert source_gradients(*plain, plain[1]).others == pytest.approx(1.0, abs=0.1)
    found = source_gradients(*sharp, sharp[1])
    assert found.others < 0.5 < found.top


def test_the_sum_over_reads_is_the_whole_gradient():
    """What reaches a source through the reads adds up to its gradient: the last source is read once, by the head."""
    model, tokens = made("attn_res", spread=0.5)
    scheme = model.scheme
    with scheme.taped() as tape:
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    last, upstream = torch.autograd.grad(loss, [tape.sources[-1], tape.reads[-1]])
    values = torch.stack(tape.sources).detach().requires_grad_()
    h = (torch.softmax(scheme.logits(values, 6), 0) * values).sum(0)
    (gradient,) = torch.autograd.grad(h, values, upstream)
    assert torch.allclose(gradient[-1], last, atol=1e-14)


def test_only_attention_over_depth():
    torch.manual_seed(0)
    config = nl.TransformerConfig(vocab_size=11, dim=16, depth=2, heads=2)
    with pytest.raises(UnsupportedError, match="attn_res"):
        dominance(nl.Transformer(config), torch.zeros(1, 2, dtype=torch.long))
    block, tokens = made("block_attn_res(blocks=2)", spread=1.0)
    with pytest.raises(UnsupportedError, match="Full"):
        dominance(block, tokens)
