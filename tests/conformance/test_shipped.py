"""The residuals that transformers ships: the same weights in, the same outputs and gradients out."""

import statistics

import pytest
import torch

import normlab as nl
from normlab.errors import ContractError, InputError, UnsupportedError
from normlab.testing.shipped import recognise
from tests.conformance.decoders import DECODERS, paper_start_, run_ours, shipped
from tests.conformance.differences import (
    DOCUMENT,
    bfloat16,
    drift,
    laurel_step,
    path,
    rounding,
    run_path,
    simple,
    whole,
)

pytest.importorskip("transformers")
STREAMS = [name for name in DECODERS if name != "gemma3n"]
SCHEMES = {
    "deepseek_v4": "mhc",
    "glm5_next": "mhc",
    "hy_v4": "independent_hc",
    "qwen4_exp": "gated_residual",
    "zaya": "residual_scaling",
    "gemma3n": "laurel",
}


def assert_same(found, *, outputs=1e-5, gradients=1e-5):
    assert 0.2 < found.size < 5, f"the outputs are not of order 1 ({found.size}), so a tolerance says nothing"
    assert found.outputs <= outputs
    assert found.gradients <= gradients


@pytest.mark.parametrize("name", DECODERS)
def test_the_scheme_is_recognised(name):
    assert shipped(name)[0].config.name == SCHEMES[name]


@pytest.mark.parametrize("name", STREAMS)
def test_the_residual_path_alone(name):
    # 1e-5 from float64, or as near as their own float32 is: in the median over draws, because in one draw a sum may nearly
    # cancel (the head's alpha), and what rounding then leaves is anybody's.
    draws = [rounding(name, seed=seed) for seed in range(1, 6)]
    theirs, ours = (statistics.median(found) for found in zip(*draws, strict=True))
    assert ours <= max(1e-5, 2 * theirs)
    theirs, ours = draws[0]
    assert max(theirs, ours) < 1e-4, "rounding is so large that this says nothing"
    assert_same(path(name, seed=1), gradients=1e-5 + theirs + ours)


@pytest.mark.parametrize("name", STREAMS)
def test_the_residual_path_in_float64_with_their_casts_taken_out(name):
    """All that is left in float32 is theirs by force: without it the two agree to the last digits."""
    assert_same(path(name, seed=2, dtype=torch.float64), outputs=1e-10, gradients=1e-9)


@pytest.mark.parametrize("name", STREAMS)
def test_whole_layers_with_their_branches(name):
    assert_same(whole(name, seed=3), outputs=2e-5, gradients=1e-4)


def test_gemma3n_laurel_step():
    assert_same(laurel_step(seed=1))


def test_the_comparison_can_fail():
    """A mixing that is not transposed, on the same weights, is far away."""
    theirs, x, tokens = shipped("deepseek_v4")
    ours = theirs.build()
    original = ours.coefficients

    def turned(streams, site):
        pre, post, res = original(streams, site)
        return pre, post, res.transpose(-1, -2)

    with torch.no_grad():
        wanted = run_path(theirs, x, tokens)
        assert (run_ours(ours, x, simple) - wanted).abs().max() < 1e-5
        ours.coefficients = turned
        assert (run_ours(ours, x, simple) - wanted).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["deepseek_v4", "glm5_next", "hy_v4"])
def test_gates_want_float32(name):
    """In bfloat16 our path is as near to float64 as the shipped one; their code without its float32 is not."""
    seen = bfloat16(name)
    assert seen.ours < 1.2 * seen.shipped
    assert seen.no_float32 > 1.1 * seen.shipped
    assert seen.no_float32 > 1.3 * seen.ours


def test_sinkhorn_in_bfloat16_lets_the_streams_drift():
    (one, all_of_them), (low, low_all) = drift("float32"), drift("bfloat16")
    assert one < 1e-6
    assert all_of_them < 1e-5
    assert low > 1e-3
    assert low_all > 100 * all_of_them


def test_what_is_no_decoder_is_one_sentence():
    with pytest.raises(InputError, match="no list of `layers`"):
        recognise(torch.nn.Linear(3, 3))
    with pytest.raises(InputError, match="hold no residual that normlab knows"):
        recognise(torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2), 2, enable_nested_tensor=False))


# -- verify ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["deepseek_v4", "glm5_next"])
def test_verify_passes_the_shipped_decoder_with_the_papers_start(name):
    decoder = paper_start_(DECODERS[name]())
    assert nl.testing.check_against(decoder).scheme == "mhc"


def test_verify_says_that_transformers_own_start_averages_the_streams():
    with pytest.raises(ContractError, match="biases never set"):
        nl.testing.check_against(DECODERS["deepseek_v4"]())


def test_verify_names_a_mistake_planted_in_the_shipped_decoder():
    with pytest.raises(ContractError, match="not transposed"):
        nl.testing.check_against(_untransposed(paper_start_(DECODERS["deepseek_v4"]())))


def _untransposed(decoder):
    """The mistake in a class of its own, so that a copy of the decoder carries it."""
    base = type(decoder.layers[0].attn_hc)

    class Turned(base):
        def forward(self, streams):
            post, comb, collapsed = super().forward(streams)
            return post, comb.transpose(-1, -2), collapsed

    for layer in decoder.layers:
        layer.attn_hc.__class__ = layer.ffn_hc.__class__ = Turned
    return decoder


def test_verify_refuses_altup_with_the_reason():
    with pytest.raises(UnsupportedError, match="Gemma-3n wraps LAuReL in AltUp"):
        nl.testing.check_against(DECODERS["gemma3n"]())


def test_verify_a_single_shipped_connection():
    decoder = paper_start_(DECODERS["deepseek_v4"]())
    assert nl.testing.check_against(decoder.layers[0].attn_hc, "mhc").passed
    hy = DECODERS["hy_v4"]()
    assert nl.testing.check_against(hy.layers[0].attn_hc, "independent_hc").passed


def test_the_table_in_the_docs_names_every_decoder():
    text = DOCUMENT.read_text()
    assert all(f"| {name} | {scheme} |" in text for name, scheme in SCHEMES.items())
