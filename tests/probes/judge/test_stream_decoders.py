"""Planted faults of multi-stream decoders are named, and healthy twins are not accused."""

import pytest
import torch

import normlab as nl
from tests.conformance.decoders import DECODERS, VOCAB, paper_start_

pytest.importorskip("transformers")
OF_STREAMS = {
    "averaging_mixing",
    "broken_mixing",
    "closed_write",
    "dead_stream",
    "one_stream_head",
    "saturated_gates",
    "stream_homogenisation",
    "unbounded_mixing",
}


def connections(decoder):
    return [hc for layer in decoder.layers for hc in (layer.attn_hc, layer.ffn_hc)]


def healthy(name="deepseek_v4"):
    """As after some training: the paper's start, moved; branches that matter."""
    torch.manual_seed(1)
    decoder = DECODERS[name]().eval()
    if name != "hy_v4":
        paper_start_(decoder)
    draw = torch.Generator().manual_seed(2)
    n = decoder.config.hc_mult
    with torch.no_grad():
        for hc in connections(decoder):
            hc.base += 0.3 * torch.randn(hc.base.shape, generator=draw)
            hc.base[n : 2 * n] += 1.5 * torch.randn(n, generator=draw)  # the writes tell the streams apart
        for parameter in decoder.layers.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.08 / decoder.config.initializer_range)
    return decoder


def verdicts(decoder):
    tokens = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    found = nl.diagnose(decoder, [tokens], skips=False)
    return {verdict.id: verdict for verdict in found.verdicts if verdict.id in OF_STREAMS}


def moved(name):
    """The same for families without these connections: gains that training moved, branches that matter."""
    torch.manual_seed(1)
    decoder, draw = DECODERS[name]().eval(), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1 + 0.1 * torch.randn(parameter.shape, generator=draw))
        for key, parameter in decoder.layers.named_parameters():
            if parameter.dim() > 1:  # what tells the streams apart has learnt most
                size = 1.0 if "inject" in key or "altup" in key else 0.15
                parameter.mul_(size / decoder.config.initializer_range)
    return decoder


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "zaya"])
def test_a_healthy_decoder_is_not_accused(name):
    mhc = name in ("deepseek_v4", "glm5_next", "hy_v4")
    tokens = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    found = nl.diagnose(healthy(name) if mhc else moved(name), [tokens], skips=False)
    assert [verdict.title for verdict in found.verdicts if verdict.severity != "note"] == []


def equalised(decoder):
    for hc in connections(decoder):
        hc.fn.zero_()
        hc.base[4:8] = 0.0


def shut(decoder):
    decoder.layers[1].ffn_hc.base[4:8] = -20.0


def dead(decoder):
    decoder.embed_tokens.weight.mul_(0.01)
    for hc in connections(decoder):
        hc.base[6] = -20.0  # nothing is written to stream 2
        hc.base[8:] = (40 * torch.eye(4) - 20).flatten()  # and nothing is mixed into it


def one_hot(decoder):
    decoder.hc_head.hc_fn.zero_()
    decoder.hc_head.hc_base.copy_(torch.tensor([20.0, -20.0, -20.0, -20.0]))


def averaged(decoder):
    for hc in connections(decoder):
        hc.base[8:] = 0.0


def unbalanced(decoder):
    draw = torch.Generator().manual_seed(4)
    for hc in connections(decoder):
        hc.hc_sinkhorn_iters = 1
        hc.base[8:] = 3 * torch.randn(16, generator=draw)


def stuck(decoder):
    """Writes that are fully open or fully shut, for every token."""
    hc = decoder.layers[1].attn_hc
    hc.fn.zero_()
    hc.base[4:8] = torch.tensor([20.0, -20.0, 20.0, 20.0])


def test_gates_at_their_bounds_are_named_and_located():
    decoder = healthy()
    with torch.no_grad():
        stuck(decoder)
    found = verdicts(decoder)["saturated_gates"]
    assert found.layers == (1,)
    assert found.value == 1.0
    assert "100 % of the gates" in found.title


FAMILIES = [name for name in DECODERS if name != "zaya"]  # which has one stream, and learned constants on it


@pytest.mark.parametrize("name", FAMILIES)
def test_a_fresh_decoder_is_untrained_and_accused_of_its_start_alone(name):
    """No loss is needed: constant gains and singular values of noise say it."""
    torch.manual_seed(0)
    decoder = DECODERS[name]().eval()
    tokens = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    found = nl.diagnose(decoder, [tokens], skips=False, loss="none")
    assert found.verdict("not_trained") is not None
    accused = {verdict.id for verdict in found.verdicts if verdict.severity != "note"}
    assert accused <= {"averaging_mixing"}
    if not accused:
        assert found.headline.startswith("Not trained")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (equalised, "stream_homogenisation"),
        (shut, "closed_write"),
        (dead, "dead_stream"),
        (one_hot, "one_stream_head"),
        (averaged, "averaging_mixing"),
        (unbalanced, "broken_mixing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_planted_fault_is_named(fault, found):
    decoder = healthy()
    with torch.no_grad():
        fault(decoder)
    assert found in verdicts(decoder)


def test_shut_gates_are_located():
    decoder = healthy()
    with torch.no_grad():
        shut(decoder)
    assert verdicts(decoder)["closed_write"].layers == (1,)


def test_transformers_own_start_is_named():
    """Biases at zero, the projection at N(0, 0.02^2): the mixing averages the streams from the first step."""
    torch.manual_seed(0)
    assert "averaging_mixing" in verdicts(DECODERS["deepseek_v4"]().eval())


def test_our_own_model_is_judged_by_the_same_rules():
    model = nl.Transformer(nl.TransformerConfig(vocab_size=VOCAB, dim=32, depth=4, heads=2, scheme="mhc"))
    tokens = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.scheme.bias[:, 4:8] += 1.5 * torch.randn(8, 4)
        model.scheme.head.bias.copy_(torch.tensor([20.0, -20.0, -20.0, -20.0]))
        model.scheme.bias[3, 4:8] = -20.0
    found = {verdict.id: verdict for verdict in nl.diagnose(model, [tokens], skips=False).verdicts}
    assert "one_stream_head" in found
    assert found["closed_write"].layers == (1,)
