"""nl.swap: the same function where theory says so, a report that says otherwise where not, and refusals in a sentence."""

import copy

import pytest
import torch

import normlab as nl
from normlab.errors import ConfigError, InputError, UnsupportedError
from normlab.schemes import SCHEMES, depth_kernels
from normlab.surgery.swap import starting
from tests.probes.zoo import Homemade
from tests.surgery.models import BACKBONES, asked, build, inputs, preserved_schemes, refused

pytest.importorskip("transformers")

NO_SCALING = ("bert", "roberta", "distilbert", "opt_350m", "olmo", "olmo2")
EXACT = ("hyper_connections", "mhc", "dense_former", "layer_scale", "gpas", "lambda_skip", "delta_attn_res")


@pytest.mark.parametrize("name", BACKBONES)
def test_preserved_schemes_start_as_the_same_function(name):
    """Within 2e-6 of the largest logit; exactly 0 for weights and mixings that are 1, but for a norm behind the sum."""
    model, batch = build(name), inputs(name)
    before = asked(model, batch)
    largest = float(before.abs().max())
    # Reads of Attention Residuals add their sources in the order of the stream where our kernels do it.
    exact = (*EXACT, "attn_res") if depth_kernels.available() else EXACT
    tried = 0
    for scheme in preserved_schemes():
        whole = copy.deepcopy(model)
        try:
            report = nl.swap(whole, scheme, batches=[batch])
        except UnsupportedError:
            assert scheme == "ln_scaling"  # its number stands behind a norm that this model has not, or cannot scale
            assert name in NO_SCALING
            continue
        tried += 1
        assert report.preserved, (scheme, report)
        assert report.why_not is None
        difference = float((asked(whole, batch) - before).abs().max())
        assert difference == pytest.approx(report.max_abs_diff, abs=1e-12)
        assert difference <= 2e-6 * max(1.0, largest), (scheme, difference)
        if scheme in exact and report.placement != "post_norm":
            assert difference == 0.0, (scheme, difference)
        assert report.new_parameters == sum(p.numel() for p in whole.scheme.parameters())
    assert tried >= len(preserved_schemes()) - 1


def precise(name):
    """A model in float64, with its norms: transformers' RMSNorm works in float32 whatever the model's type."""
    model = build(name).double()
    if hasattr(model.config, "_experts_implementation"):
        model.config._experts_implementation = "eager"  # torch's grouped product has no float64
    for module in list(model.modules()):
        if "RMSNorm" in type(module).__name__:
            module.forward = _Precise(module)
    return model


# Kimi's linear attention works in float32 inside.
@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "kimi_linear"])
def test_float64(name):
    """What differs in float32 is rounding, also behind the norms of BERT, where a branch adds N(x + F(x)) - x."""
    model, batch = precise(name), {key: _double(value) for key, value in inputs(name).items()}
    before = asked(model, batch)
    for scheme in ("attn_res", "block_attn_res", "delta_attn_res", "mhc", "hyper_connections", "independent_hc"):
        whole = copy.deepcopy(model)
        nl.swap(whole, scheme, batches=[batch])
        assert float((asked(whole, batch) - before).abs().max()) <= 1e-12, scheme


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_post_norm_differs_by_no_more_than_twice_the_models_own_rounding(name):
    """The sum of what branches add, N(x + F(x)) - x, rounds where the model's own sum does not: 4e-6 of logits of 3."""
    model, batch = build(name), inputs(name)
    before = asked(model, batch)
    own = float((before - asked(precise(name), batch)).abs().max())
    for scheme in ("attn_res", "block_attn_res", "delta_attn_res", "hyper_connections"):
        whole = copy.deepcopy(model)
        nl.swap(whole, scheme, batches=[batch])
        assert float((asked(whole, batch) - before).abs().max()) <= 2 * own, scheme


def _double(value):
    return value.double() if value.is_floating_point() else value


class _Precise:
    """x / rms(x) times the gain, in float64."""

    def __init__(self, norm):
        self.norm = norm

    def __call__(self, x):
        norm = self.norm
        eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        gain = 1 + norm.weight if type(norm).__name__.startswith("Gemma") else norm.weight
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("scheme", ["attn_res", "block_attn_res", "hyper_connections"])
def test_bfloat16_stays_within_the_models_own_rounding(name, scheme):
    batch = inputs(name)
    precise = asked(build(name), batch)
    model = build(name).bfloat16()
    rounded = asked(model, batch).float()
    report = nl.swap(model, scheme, batches=[batch])
    assert report.preserved
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    own = float((rounded - precise).abs().max())
    assert float((asked(model, batch).float() - rounded).abs().max()) <= 1.5 * own
    assert float((asked(model, batch).float() - precise).abs().max()) <= 2 * own


@pytest.mark.parametrize(
    ("name", "scheme"), [("llama", "peri_norm"), ("llama", "keel"), ("llama", "post_norm"), ("gemma2", "pre_norm"),
                         ("bert", "pre_norm"), ("olmo2", "peri_norm"), ("gpt_neox", "res_norm"), ("llama", "laurel")],
)  # fmt: skip
def test_what_moves_norms_is_reported_as_not_preserved(name, scheme):
    model, batch = build(name), inputs(name)
    report = nl.swap(model, scheme, batches=[batch])
    assert not report.preserved
    assert "a norm drops the size of each token" in report.why_not
    assert "NOT" in report.text
    assert torch.isfinite(asked(model, batch)).all()


@pytest.mark.parametrize(
    ("name", "scheme"), [("llama", "pre_norm"), ("gemma2", "peri_norm"), ("olmo2", "res_norm"), ("bert", "post_norm"),
                         ("bert", "deep_norm"), ("bert", "admin")],
)  # fmt: skip
def test_the_placement_that_a_model_has_already_is_exact(name, scheme):
    model, batch = build(name), inputs(name)
    report = nl.swap(model, scheme, batches=[batch])
    assert report.preserved
    assert report.max_abs_diff == 0.0


def test_calibration_takes_the_measured_size():
    """Gains are the median sizes of what the branches add, and nearer to the model than gains of 1."""
    batch, jumps = inputs("llama", tokens=24), {}
    for calibrate in ("auto", "off"):
        model = build("llama")
        before = asked(model, batch)
        nl.swap(model, "peri_norm", batches=[batch], calibrate=calibrate)
        jumps[calibrate] = float((asked(model, batch) - before).abs().mean())
    assert jumps["auto"] < jumps["off"]
    gains = {round(float(norm.weight.detach()[0]), 3) for norm in model.scheme.res}
    assert gains == {1.0}


def test_options_that_are_given_stand_and_the_rest_is_neutral():
    assert starting("layer_scale", {}).initial == 1.0
    assert starting("layer_scale", {"initial": 0.1}).initial == 0.1
    assert starting("layer_scale(initial=0.1)", {}).initial == 0.1
    mhc = starting("mhc", {"streams": 2})
    assert (mhc.streams, mhc.initial) == (2, "identity")
    assert starting("mhc", {"initial": "paper"}).initial == "paper"
    assert starting("ln_scaling", {}).power == 0.5  # folded into the norms
    model = build("llama")
    report = nl.swap(model, "layer_scale", initial=0.1, batches=[inputs("llama")])
    assert not report.preserved
    assert "layer_scale(initial=1.0) would start as the same function" in report.why_not


def test_ln_scaling_is_no_empty_promise():
    """Folded at the start, but the numbers are there: undo the folding and the function changes."""
    model, batch = build("llama"), inputs("llama")
    before = asked(model, batch)
    nl.swap(model, "ln_scaling", batches=[batch])
    with torch.no_grad():
        for layer, module in enumerate(model.model.layers, 1):
            module.input_layernorm.weight.mul_(layer**-0.5)
    assert float((asked(model, batch) - before).abs().max()) > 1e-2


def state_of(model):
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
    return (
        type(model),
        type(model.config),
        hooks,
        {k: v.clone() for k, v in model.state_dict().items()},
        sorted(name for name, _ in model.named_modules()),
    )


def same_state(one, two):
    return one[:3] == two[:3] and one[4] == two[4] and all(torch.equal(one[3][k], two[3][k]) for k in one[3])


@pytest.mark.parametrize(
    ("scheme", "options", "error", "says"),
    [
        ("ngpt", {}, UnsupportedError, "ngpt reaches inside the branches"),
        ("sub_norm", {}, UnsupportedError, "reaches inside the branches"),
        ("hybrid_norm", {}, UnsupportedError, "reaches inside the branches"),
        ("block_atn_res", {}, ConfigError, "did you mean 'block_attn_res'"),
        ("block_attn_res", {"blocks": 99}, ConfigError, "more than the model's 6 branches"),
        ("attn_res", {"inner": "peri_norm"}, UnsupportedError, "the norms around a branch are the model's own"),
        ("attn_res", {"calibrate": "yes"}, ConfigError, "unknown calibrate 'yes'"),
        ("peri_norm", {"strict": True}, UnsupportedError, "nothing was changed"),
    ],
)
def test_bad_input_is_a_sentence_and_the_model_is_unchanged(scheme, options, error, says):
    model, batch = build("llama"), inputs("llama")
    before = state_of(model)
    with pytest.raises(error, match=says):
        nl.swap(model, scheme, batches=[batch], **options)
    assert same_state(before, state_of(model))


def test_swapped_twice():
    model, batch = build("llama"), inputs("llama")
    nl.swap(model, "attn_res", batches=[batch])
    before = state_of(model)
    with pytest.raises(UnsupportedError, match=r"swapped already \(attn_res\)"):
        nl.swap(model, "mhc", batches=[batch])
    assert same_state(before, state_of(model))
    assert model.config.normlab["scheme"]["name"] == "attn_res"


def test_models_that_cannot_be_operated_on():
    with pytest.raises(UnsupportedError, match="not a Hugging Face model"):
        nl.swap(Homemade("pre"), "attn_res")
    model = build("llama")
    model.config.quantization_config = {"bits": 4}
    before = state_of(model)
    for operate in (lambda: nl.swap(model, "attn_res"), lambda: nl.prune(model, [0])):
        with pytest.raises(UnsupportedError, match="is quantised"):
            operate()
    assert same_state(before, state_of(model))
    with pytest.raises(UnsupportedError, match="one block that AlbertForMaskedLM applies 3 times"):
        nl.swap(build("albert"), "attn_res")
    with pytest.raises(UnsupportedError, match="carries its normed input"):
        nl.swap(build("bloom_carried"), "attn_res")


def test_an_unknown_role():
    import transformers

    config = transformers.GPTJConfig(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=32, rotary_dim=4)
    model = transformers.GPTJForCausalLM(config)
    before = state_of(model)
    with pytest.raises(UnsupportedError, match=r"GPTJBlock.* are not in the table of architectures"):
        nl.swap(model, "attn_res")
    assert same_state(before, state_of(model))


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (torch.tensor([[5, 100_000]]), "the token 100000, but LlamaForCausalLM knows tokens from 0 to 96"),
        (torch.tensor([[5, -1]]), "the token -1"),
        (torch.rand(2, 3), "token ids are whole numbers, but the batch has float32"),
    ],
)
def test_batches_of_another_tokenizer(batch, says):
    model = build("llama")
    before = state_of(model)
    with pytest.raises(InputError, match=says):
        nl.swap(model, "attn_res", batches=[batch])
    assert same_state(before, state_of(model))


def test_models_that_have_no_numbers():
    with pytest.raises(UnsupportedError, match="on the meta device, without weights"):
        nl.swap(build("llama").to("meta"), "attn_res")
    model = build("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="answers these batches with NaN"):
        nl.swap(model, "attn_res", batches=[inputs("llama")])
    assert type(model).__name__ == "LlamaForCausalLM"


def test_inside_of_inference_mode_the_scheme_can_still_be_trained():
    model = build("llama").bfloat16()
    with torch.inference_mode():
        nl.swap(model, "attn_res", batches=[inputs("llama")])
    model(**inputs("llama")).logits.square().mean().backward()
    assert model.scheme.queries.grad is not None


def test_a_model_of_two_halves_says_which_was_swapped():
    import transformers

    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    model = transformers.T5ForConditionalGeneration(config)
    report = nl.swap(model, "attn_res")
    assert report.preserved
    assert "Of its two halves one was swapped, the T5Stack with 2 layers." in report.text
    assert model._spliced is model.get_encoder()


def test_without_batches_the_check_runs_on_random_tokens():
    report = nl.swap(build("llama"), "attn_res")
    assert report.preserved
    assert "random tokens" in report.text
    assert report.to_dict()["scheme"] == "attn_res"


def test_two_models_of_one_config_stay_apart():
    import transformers

    config = build("llama").config
    one, two = transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM(config)
    nl.swap(one, "attn_res")
    assert two.config.model_type == "llama"
    assert not hasattr(two.config, "normlab")


def test_every_scheme_is_swapped_or_refused_in_a_sentence():
    for scheme in SCHEMES:
        model = build("llama")
        try:
            report = nl.swap(model, scheme, batches=[inputs("llama")])
        except UnsupportedError:
            assert refused(scheme)
        else:
            assert report.preserved or report.why_not
