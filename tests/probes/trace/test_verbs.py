"""normlab's own Transformer under every scheme."""

import math

import pytest
import torch

import normlab as nl
from normlab.probes.diagnose import diagnose
from normlab.probes.inputs.losses import pick
from normlab.probes.measure.skips import skip_layers
from normlab.probes.trace.identity import verify
from normlab.probes.trace.locate import locate
from normlab.probes.trace.sdpa import attention_weights

SINGLE = ("pre_norm", "post_norm", "peri_norm", "res_norm", "mix_norm", "ln_scaling", "deep_norm", "hybrid_norm")


def build(scheme, depth=3):
    torch.manual_seed(0)
    shape = {"vocab_size": 61, "dim": 32, "depth": depth, "heads": 4, "max_length": 64, "init_std": 0.2}
    return nl.Transformer(nl.TransformerConfig(scheme=scheme, **shape)).eval()


def tokens(batch=2, length=12):
    return torch.randint(0, 61, (batch, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scheme", sorted(nl.SCHEMES))
def test_every_scheme_is_traced_and_left_alone(scheme):
    model, ids = build(scheme), tokens()
    with torch.no_grad():
        before = model(ids)
    layout = locate(model, lambda: model(ids))
    errors = verify(layout, lambda: model(ids)).errors
    assert len(errors) == 3
    assert layout.placement == scheme
    if scheme in SINGLE:
        assert 0 < max(errors) < 1e-4  # > 0: a check that was not made would be an exact zero
    found = diagnose(model, [ids], lengths=(8, 12))
    assert [row.layer for row in found.layers] == [0, 1, 2]
    assert all(math.isfinite(row.attention_ratio) and math.isfinite(row.ffn_ratio) for row in found.layers)
    assert all(0 < row.entropy <= 1 + 1e-6 for row in found.layers)
    assert all(row.gradient_norm >= 0 for row in found.layers)
    assert len(found.causal.change) == 3
    with torch.no_grad():
        assert torch.equal(before, model(ids))
    assert not {"enter", "leave", "write", "_read"} & set(model.scheme.__dict__)


def test_reads_agree_with_the_models_own_depth_mixing():
    model, ids = build("pre_norm"), tokens()
    reads = model.depth_mixing_parts(ids).reads
    seen = []
    layout = locate(model, lambda: model(ids))
    with layout.tracer(lambda r: seen.extend(p.before for p in r.parts)), torch.no_grad():
        model(ids)
    for mine, theirs in zip(seen, reads, strict=False):
        torch.testing.assert_close(mine, theirs.detach())


def test_skipping_a_layer_is_a_model_without_its_branches():
    model, ids = build("pre_norm"), tokens()
    layout = locate(model, lambda: model(ids))
    loss = pick("auto", model, ids)
    assert loss.name == "causal"
    effects = skip_layers(layout, ids, loss)
    with torch.no_grad():
        for branch in (2, 3):  # what they add becomes zero
            for parameter in model.branches[branch].parameters():
                parameter.zero_()
        assert effects.loss[1] == pytest.approx(float(loss(model, ids)), rel=1e-5)
    assert effects.loss[1] != pytest.approx(effects.baseline, rel=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_attention_weights_give_sdpas_output(causal, grouped):
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2 if grouped else 4, 6, 8)
    v = torch.randn_like(k)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    weights = attention_weights(q, k, is_causal=causal, enable_gqa=grouped)
    values = v.repeat_interleave(2, 1) if grouped else v
    torch.testing.assert_close(weights @ values, expected)
