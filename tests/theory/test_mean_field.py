"""Xiong et al. 2020 by Monte Carlo: lemmas, theorem, both forms of back-propagation, every scheme of the registry."""

import math

import pytest

from normlab.errors import ConfigError
from normlab.schemes import SCHEMES
from normlab.theory import mean_field as theory

PAPER = theory.MeanFieldSetting(dim=64, tokens=16, depths=(2, 4, 8, 16), draws=6)


@pytest.fixture(scope="module")
def post():
    return theory.mean_field("post_norm", PAPER)


@pytest.fixture(scope="module")
def pre():
    return theory.mean_field("pre-norm", PAPER)


def test_lemma_1_relu_halves():
    measured, stated = theory.lemma_relu()
    assert measured == pytest.approx(stated, rel=0.01)


def test_lemma_3_the_norms_jacobian():
    measured, stated = theory.lemma_layer_norm()
    assert measured == pytest.approx(stated, rel=1e-12)


def test_lemma_2_post_sums_to_three_halves_at_every_layer(post):
    after_ffn = post.depths[-1].summed[1::2]
    assert after_ffn == pytest.approx([1.5] * 16, abs=0.3)
    assert post.fits.summed_after_ffn == pytest.approx(1.5, abs=0.03)


def test_lemma_2_pre_grows_between_its_bounds(pre):
    """(1 + l/2) d <= E|x_l|^2 <= (1 + 3l/2) d. A summary prints (1 + 2l) d as the lower bound: above the upper one."""
    for layer, square in enumerate(pre.depths[-1].stream[2::2], 1):
        assert 0.95 * (1 + layer / 2) < square < 1.05 * (1 + 3 * layer / 2)
        assert square < 1 + 2 * layer
    assert 0.5 < pre.fits.stream_added_per_layer < 1.5


def test_theorem_the_last_gradient_does_not_know_depth_in_post_and_falls_in_pre(post, pre):
    assert post.fits.last_gradient_vs_depth == pytest.approx(0.0, abs=0.12)
    assert pre.fits.last_gradient_vs_depth == pytest.approx(-0.5, abs=0.12)


def test_the_factor_of_two_thirds_is_the_skip_paths_not_the_gradients(post):
    """The norm behind an FFN scales by sqrt(2/3), as stated; but the FFN's own path adds back 3/2, and the whole is flat."""
    form = theory.backprop_forms("post_norm", setting=theory.MeanFieldSetting(dim=32, tokens=8))
    assert form.norm_after_ffn == pytest.approx(math.sqrt(2 / 3), abs=0.03)
    assert form.identity < 0.05 < 0.3 < form.whole
    assert post.fits.gradient_per_layer == pytest.approx(1.0, abs=0.06)
    assert post.stated.gradient_per_layer == pytest.approx(1.2247, abs=1e-4)


def test_in_pre_signal_times_norm_is_flat_so_the_gradient_is_not(pre):
    assert pre.fits.signal_times_stream_per_layer == pytest.approx(1.0, abs=0.06)
    assert pre.depths[-1].down[0] > 2 * pre.depths[-1].down[-1]


@pytest.mark.parametrize("scheme", ["post_norm", "pre_norm"])
def test_both_forms_are_exact(scheme):
    form = theory.backprop_forms(scheme, depth=5)
    assert form.error < 1e-13
    assert form.form == ("product" if scheme == "post_norm" else "sum")
    assert len(form.by_layer) == 5


def test_gpt2s_initialisation_takes_the_exponent_away():
    """-1/2 comes from the growing stream; with outputs divided by sqrt(2L) nothing grows, and the exponent goes."""
    real = theory.mean_field("pre_norm", theory.MeanFieldSetting(mode="real", draws=4))
    assert real.fits.stream_added_per_layer < 0.2
    assert abs(real.fits.last_gradient_vs_depth) < 0.2


@pytest.mark.parametrize("mode", ["paper", "real"])
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_scheme_of_the_registry(scheme, mode):
    found = theory.mean_field(
        scheme, theory.MeanFieldSetting(mode=mode, dim=16, tokens=4, heads=2, depths=(1, 3), draws=1)
    )
    deepest = found.depths[-1]
    assert len(deepest.up) == len(deepest.down) == 3
    assert len(deepest.stream) == 7
    assert all(math.isfinite(v) and v > 0 for v in deepest.stream)
    assert all(math.isfinite(v) for v in (*deepest.up, *deepest.down, *deepest.signal))
    # ReZero starts closed, so no gradient reaches an FFN; every other scheme trains every layer from the start.
    assert all(v > 0 for v in (*deepest.up, *deepest.down)) == (scheme != "rezero")


def test_draws_are_repeatable_and_leave_the_global_generator_alone():
    import torch

    torch.manual_seed(5)
    before = torch.get_rng_state()
    small = theory.MeanFieldSetting(dim=16, tokens=4, depths=(1, 2), draws=1)
    first, second = (theory.mean_field("post_norm", small).to_dict() for _ in range(2))
    assert first["depths"] == second["depths"]
    assert torch.equal(before, torch.get_rng_state())


def test_forms_exist_for_two_schemes():
    with pytest.raises(ConfigError, match="not 'peri_norm'"):
        theory.backprop_forms("peri_norm")


def test_options_are_part_of_the_scheme():
    small = theory.MeanFieldSetting(dim=16, tokens=4, depths=(2, 4), draws=1)
    plain, other = (theory.mean_field(name, small) for name in ("block_attn_res", "block_attn_res(blocks=2)"))
    assert other.scheme == "block_attn_res(blocks=2)"
    assert other.depths[-1].stream != plain.depths[-1].stream
    assert (
        theory.mean_field("pre_norm(final_norm=False)", small).stated == theory.Stated()
    )  # another scheme than Xiong's
