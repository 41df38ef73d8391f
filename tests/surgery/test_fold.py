"""nl.fold: the plain architecture again where that is exact, else the reason."""

import pytest
import torch

import normlab as nl
from normlab.errors import UnsupportedError
from tests.surgery.models import BACKBONES, asked, build, inputs, swapped

pytest.importorskip("transformers")

POST = ("bert", "roberta", "distilbert", "opt_350m")


@pytest.mark.parametrize("name", [name for name in BACKBONES if name not in POST])
def test_gains_go_into_the_weights(name):
    """A layer_scale that has learnt: the plain model with the folded weights does the same."""
    model, batch = swapped(name, "layer_scale", moved=0.3), inputs(name)
    before = asked(model, batch)
    report = nl.fold(model, batches=[batch])
    plain = build(name, seed=1)
    assert type(model) is type(plain)
    assert type(model.config) is type(plain.config)
    plain.load_state_dict(model.state_dict())
    difference = float((asked(plain, batch) - before).abs().max())
    assert difference <= 2e-6 * max(1.0, float(before.abs().max()))
    assert difference == pytest.approx(report.max_abs_diff, abs=1e-9)
    assert report.folded
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "gpt_neox", "falcon"])
def test_ln_scaling_goes_into_the_norms(name):
    plain, batch = build(name), inputs(name)
    model = build(name)
    nl.swap(model, "ln_scaling", batches=[batch])
    nl.fold(model, batches=[batch])
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("scheme", ["attn_res", "hyper_connections", "mhc", "gpas", "pre_norm", "lambda_skip"])
def test_what_has_not_learnt_comes_out_as_it_went_in(scheme):
    model, batch = build("llama"), inputs("llama")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    nl.swap(model, scheme, batches=[batch])
    report = nl.fold(model, batches=[batch])
    assert not report.folded
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "scheme", "says"),
    [
        ("llama", "attn_res", r"has learnt \(queries, key_gain\)"),
        ("llama", "gpas", r"has learnt \(gate\)"),
        ("llama", "peri_norm", "has norms where LlamaForCausalLM has none"),
        ("bert", "layer_scale", r"has learnt \(b.values\)"),
        ("gemma2", "pre_norm", "has norms where Gemma2ForCausalLM has none"),
    ],
)
def test_refusals_leave_the_model_as_it_is(name, scheme, says):
    model, batch = swapped(name, scheme), inputs(name)
    before = asked(model, batch)
    with pytest.raises(UnsupportedError, match=says):
        nl.fold(model, batches=[batch])
    assert torch.equal(asked(model, batch), before)


def test_nothing_to_fold():
    with pytest.raises(UnsupportedError, match="is not swapped"):
        nl.fold(build("llama"))
