"""Several residual streams in Hugging Face decoders: the identity of every branch, the streams, mixings and gates."""

from itertools import pairwise

import pytest
import torch

import normlab as nl
from normlab.errors import UnsupportedError
from normlab.probes.trace.identity import verify
from normlab.probes.trace.locate import locate
from tests.conformance.decoders import DECODERS, VOCAB, paper_start_, randomise_

pytest.importorskip("transformers")
KINDS = {"deepseek_v4": "mhc", "glm5_next": "mhc", "hy_v4": "independent_hc", "qwen4_exp": "gated_residual"}


def tokens(count=2, length=9):
    return torch.randint(0, VOCAB, (count, length), generator=torch.Generator().manual_seed(0))


def built(name, seed=0):
    torch.manual_seed(seed)
    decoder = DECODERS[name]().eval()
    randomise_(decoder, seed)
    return decoder


@pytest.mark.parametrize("name", KINDS)
def test_the_identity_holds_and_the_kind_is_named(name):
    decoder = built(name)
    layout = locate(decoder, lambda: decoder(tokens()))
    assert layout.placement == KINDS[name]
    errors = verify(layout, lambda: decoder(tokens())).errors
    assert len(errors) == 3
    assert max(errors) < 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_records_hold_what_the_model_computed(name):
    decoder, records = built(name), []
    layout = locate(decoder, lambda: decoder(tokens()))
    with torch.no_grad(), layout.tracer(records.append):
        output = decoder(tokens()).last_hidden_state
    assert [record.index for record in records] == [0, 1, 2]
    for record, following in pairwise(records):
        assert record.streams.shape == (2, 9, 4, 32)
        assert torch.equal(record.after, following.before)  # what this layer leaves is what the next one reads
        assert [part.kind for part in record.parts] == ["attention", "ffn"]
        assert [len(record.mixings), len(record.gates)] == [2 if KINDS[name] == "mhc" else 0, 2]
    for mixing in (mixing for record in records for mixing in record.mixings):
        assert (mixing.sum(-1) - 1).abs().max() < 1e-4
        assert (mixing >= 0).all()
    # The head's read is the last "after"; behind it is at most a norm.
    last = records[-1].after
    found = last if name == "qwen4_exp" else decoder.norm(last)
    torch.testing.assert_close(found, output)
    if records[-1].head is not None:
        read = (records[-1].head.unsqueeze(-1) * records[-1].streams).sum(-2)
        torch.testing.assert_close(read, last, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_a_diagnosis(name):
    found = nl.diagnose(built(name), [tokens()], skips=False)
    assert found.placement == KINDS[name]
    assert found.identity_error < 1e-4
    assert len(found.layers) == 3
    for row in found.layers:
        assert 1 <= row.effective_streams <= 4
        assert row.homogenisation <= 1
    if KINDS[name] == "mhc":
        assert all(0 < row.mixing_keeps <= 1 and row.mixing_error < 0.2 for row in found.layers)


def test_our_own_scheme_has_the_same_numbers_as_the_shipped_decoder_that_it_is():
    """One decoder, traced by hooks, and our scheme with its weights, traced by its verbs."""
    from normlab.testing.shipped import recognise

    decoder = built("deepseek_v4")
    theirs, records = recognise(decoder), []
    layout = locate(decoder, lambda: decoder(tokens()))
    with torch.no_grad(), layout.tracer(records.append):
        decoder(tokens())
    scheme = theirs.build()
    with torch.no_grad():
        stream = scheme.open(decoder.embed_tokens(tokens()))
        for record in records:
            for part, mixing, gates, site in zip(
                record.parts, record.mixings, record.gates, theirs.frame.sites[2 * record.index :], strict=False
            ):
                pre, post, res = scheme.coefficients(stream, site)
                torch.testing.assert_close(mixing, res, rtol=0, atol=1e-5)
                torch.testing.assert_close(gates.write, post, rtol=0, atol=1e-5)
                torch.testing.assert_close(gates.read, pre, rtol=0, atol=1e-5)
                _, carry = scheme.read(stream, site)
                stream = scheme.write(stream, part.added, carry, site)
            torch.testing.assert_close(record.streams, stream, rtol=0, atol=1e-4)


def test_a_layer_that_forgets_the_transposition_is_refused_with_the_reason():
    decoder = paper_start_(built("deepseek_v4"))
    for layer in decoder.layers:
        for hc in (layer.attn_hc, layer.ffn_hc):
            torch.nn.init.normal_(hc.base)

    def forgetful(layer):
        def forward(hidden_states, input_ids=None, **kwargs):
            x = hidden_states
            for hc, norm, branch in (
                (layer.attn_hc, layer.input_layernorm, lambda z: layer.self_attn(z, **kwargs)[0]),
                (layer.ffn_hc, layer.post_attention_layernorm, lambda z: layer.mlp(z, input_ids=input_ids)),
            ):
                post, comb, collapsed = hc(x)
                x = post.unsqueeze(-1) * branch(norm(collapsed)).unsqueeze(-2) + comb @ x
            return x

        return forward

    for layer in decoder.layers:
        layer.forward = forgetful(layer)
    layout = locate(decoder, lambda: decoder(tokens()))
    with pytest.raises(UnsupportedError, match="they are with comb not transposed"):
        verify(layout, lambda: decoder(tokens()))


def test_a_monitor_gives_the_numbers_of_a_diagnosis_under_the_same_names():
    decoder = built("deepseek_v4").train()
    monitor = nl.Monitor(decoder, every=1)
    monitor.before_step()
    decoder(tokens()).last_hidden_state.square().sum().backward()
    monitor.gradients()
    values = monitor.step()
    rows = nl.diagnose(decoder, [tokens()], skips=False).layers
    for name in (
        "homogenisation",
        "effective_streams",
        "smallest_stream",
        "mixing_error",
        "mixing_keeps",
        "write_gate",
    ):
        for row in rows:
            assert values[f"streams/layer_{row.layer}/{name}"] == pytest.approx(getattr(row, name), rel=1e-3)


def test_gemma3n_altup_and_laurel():
    decoder, records = built("gemma3n"), []
    layout = locate(decoder, lambda: decoder(tokens()))
    assert layout.placement == "laurel, AltUp"
    assert max(verify(layout, lambda: decoder(tokens())).errors) < 1e-4
    with torch.no_grad(), layout.tracer(records.append):
        output = decoder(tokens()).last_hidden_state
    assert [record.streams.shape for record in records] == [(2, 9, 4, 32)] * 3
    assert torch.equal(records[0].after, records[1].before)
    torch.testing.assert_close(decoder.norm(records[-1].after), output)
    assert not any("predict" in vars(layer.altup) for layer in decoder.layers), "what was wrapped is put back"
    found = nl.diagnose(decoder, [tokens()], skips=False)
    assert found.identity_error < 1e-4
    assert all(row.effective_streams >= 1 for row in found.layers)
