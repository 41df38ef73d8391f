"""Encoder-decoder gradients against torch.nn.Transformer with the same weights, and the figure's shape."""

import math

import pytest
import torch

from normlab.errors import ConfigError
from normlab.observe.gradients import last_over_first
from normlab.schemes import parse_scheme
from normlab.theory.encoder_decoder import EncoderDecoder, EncoderDecoderSetting, feed_forward_gradients

SMALL = EncoderDecoderSetting(encoder=2, decoder=3, dim=16, heads=2, tokens=5, vocabulary=7)


def torchs(ours, setting, *, norm_first):
    """torch's own encoder-decoder with our matrices."""
    theirs = torch.nn.Transformer(
        setting.dim, setting.heads, setting.encoder, setting.decoder, 4 * setting.dim, 0.0, bias=False,
        norm_first=norm_first, layer_norm_eps=1e-12, batch_first=True, dtype=torch.float64,
    )  # fmt: skip
    if not norm_first:  # torch puts a final norm behind Post-LN as well
        theirs.encoder.norm = theirs.decoder.norm = None

    def attention(mine, other):
        other.in_proj_weight.data = torch.cat([mine.query.weight, mine.key.weight, mine.value.weight]).detach()
        other.out_proj.weight.data = mine.out.weight.detach()

    for half, mine in ((theirs.encoder, ours.encoder), (theirs.decoder, ours.decoder)):
        branches = iter(mine.branches)
        for layer in half.layers:
            attention(next(branches), layer.self_attn)
            if hasattr(layer, "multihead_attn"):
                attention(next(branches), layer.multihead_attn)
            ffn = next(branches)
            layer.linear1.weight.data = ffn.up.weight.detach()
            layer.linear2.weight.data = ffn.down.weight.detach()
    return theirs


@pytest.mark.parametrize("scheme", ["post_norm", "pre_norm"])
def test_same_gradients_as_torch(scheme):
    generator = torch.Generator().manual_seed(0)
    ours = EncoderDecoder(parse_scheme(scheme), SMALL, generator)
    theirs = torchs(ours, SMALL, norm_first=scheme == "pre_norm")
    source, target = torch.randn(2, 2, 5, 16, dtype=torch.float64, generator=generator)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    expected = ours.head(theirs(source, target, tgt_mask=mask))
    found = ours(source, target)
    assert torch.allclose(found, expected, atol=1e-12)
    expected.square().sum().backward()
    found.square().sum().backward()
    for half, mine in ((theirs.encoder, ours.encoder), (theirs.decoder, ours.decoder)):
        for layer, up, down in zip(half.layers, *mine.matrices(), strict=True):
            assert torch.allclose(up.grad, layer.linear1.weight.grad, atol=1e-10)
            assert torch.allclose(down.grad, layer.linear2.weight.grad, atol=1e-10)


def test_post_norm_decays_towards_the_input_and_deeper_networks_more():
    """The figure: in 6-6 the last decoder layer's W1 has a few times the first's gradient; Pre-Norm's does not."""
    ratios = {}
    for scheme, layers in (("post_norm", 6), ("post_norm", 12), ("pre_norm", 6)):
        setting = EncoderDecoderSetting(encoder=layers, decoder=layers, dim=32, tokens=8)
        draws = [last_over_first(feed_forward_gradients(scheme, setting, seed=seed).up) for seed in range(4)]
        ratios[scheme, layers] = math.exp(sum(map(math.log, draws)) / len(draws))
    assert ratios["post_norm", 6] > 2
    assert ratios["post_norm", 12] > 1.5 * ratios["post_norm", 6]
    assert ratios["pre_norm", 6] < 1


def test_one_half_alone():
    found = feed_forward_gradients("pre_norm", SMALL.replace(encoder=0))
    assert (len(found.encoder_up), len(found.up), len(found.down)) == (0, 3, 3)
    assert SMALL.replace(encoder=0).name == "decoder 3"
    found = feed_forward_gradients("attn_res", SMALL.replace(decoder=0))
    assert len(found.up) == 2
    with pytest.raises(ConfigError, match="a layer or more"):
        feed_forward_gradients("pre_norm", SMALL.replace(encoder=0, decoder=0))
