"""The theory laid over real networks: ours with random weights, and Hugging Face models by hooks."""

import json

import numpy as np
import pytest
import torch
import transformers

from normlab.cli import run
from normlab.dynamics import FIELDS
from normlab.dynamics.networks.bridge import bridge, random_tokens
from normlab.dynamics.networks.kernel import Push, cosines, kernel, propagate
from normlab.errors import ConfigError, InputError, UnsupportedError
from normlab.model import Transformer, TransformerConfig
from normlab.schemes import scheme

TOKENS = random_tokens(64, batch=2, length=24)


def _network(name, **changes):
    settings = {"vocab_size": 64, "dim": 256, "depth": 6, "heads": 4, "positions": "nope", "init_std": 256**-0.5}
    return Transformer(TransformerConfig(scheme=scheme(name), **{**settings, "ffn": "relu", "causal": True, **changes}))


@pytest.mark.parametrize("name", FIELDS)
def test_random_networks_follow_the_kernel_with_ffn_heads_and_mask(name):
    found = bridge(_network(name), TOKENS)
    assert len(found.measured) == 13
    assert found.kernel_error < 0.06
    assert found.kernel[0] == pytest.approx(found.measured[0], abs=1e-9)


@pytest.mark.parametrize(
    "changes", [{"ffn": "swiglu"}, {"ffn": "gelu"}, {"ffn": "none"}, {"causal": False}, {"norm": "layernorm"}]
)
@pytest.mark.parametrize("name", ["post_norm", "pre_norm", "peri_norm"])
def test_other_ffns_norms_and_masks(name, changes):
    assert bridge(_network(name, **changes), TOKENS).kernel_error < 0.06


def test_identity_weights_overstate_how_fast_tokens_gather():
    found = bridge(_network("pre_norm", ffn="none", depth=12), TOKENS)
    assert found.flow_error > 5 * found.kernel_error
    assert np.all(np.array(found.flow)[1:] > np.array(found.measured)[1:])


def test_the_kernel_is_the_limit_of_width():
    errors = []
    for d in (32, 512):
        networks = [_network("post_norm", dim=d, init_std=d**-0.5, heads=8) for _ in range(4)]
        errors.append(np.mean([bridge(network, TOKENS).kernel_error for network in networks]))
    assert errors[1] < errors[0] / 2  # 1/sqrt(16) = 1/4, but for the sampling of heads


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_kernels_against_sampled_units(activation):
    rng = np.random.default_rng(0)
    std, g = 0.8, 0.35
    u = rng.standard_normal((2, 2_000_000)) * std
    u[1] = g * u[0] + np.sqrt(1 - g * g) * u[1]
    x = torch.tensor(u)
    phi = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "swiglu": torch.nn.functional.silu}[activation](x)
    expected = float((phi[0] * phi[1]).mean() / (phi[0] ** 2).mean()) * (g if activation == "swiglu" else 1.0)
    assert float(kernel(activation, std)(np.array(g))) == pytest.approx(expected, abs=0.004)
    assert float(kernel(activation, std)(np.array(1.0))) == pytest.approx(1.0, abs=1e-9)


def test_uniform_attention_in_one_step_by_hand():
    """Two orthogonal tokens, uniform attention of size 1, Pre-LN: K = I + ones, so the cosine is 1/2."""
    after = propagate(
        np.eye(2), [Push("attention", FIELDS["pre_norm"].last, 1.0)], mask=None, kappa=kernel("relu", 1.0)
    )[-1]
    assert cosines(after)[0, 1] == pytest.approx(0.5)


SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
HUGGING_FACE = {
    "gpt2": ("pre_norm", True, {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 64}),
    "llama": ("pre_norm", True, SHAPE),
    "bert": ("post_norm", False, SHAPE),
}


@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_hugging_face_models_by_hooks(kind):
    name, causal, sizes = HUGGING_FACE[kind]
    special = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.AutoConfig.for_model(kind, vocab_size=64, **sizes, **special)
    model = transformers.AutoModel.from_config(config)
    found = bridge(model, TOKENS, scheme=name, causal=causal)
    assert len(found.measured) == 5
    assert found.kernel_error < 0.08
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_what_cannot_be_bridged_says_why():
    with pytest.raises(UnsupportedError, match="they cover post_norm"):
        bridge(_network("hyper_connections"), TOKENS)
    with pytest.raises(InputError, match="does not say where its norms are"):
        bridge(torch.nn.Linear(3, 3), TOKENS)
    with pytest.raises(InputError, match="no list of equal blocks"):
        bridge(torch.nn.Linear(3, 3), TOKENS, scheme="pre")
    with pytest.raises(InputError, match="two tokens or more"):
        bridge(_network("pre_norm"), TOKENS[:, :1])
    silent = _network("pre_norm")
    with torch.no_grad():
        silent.embedding.weight[int(TOKENS[0, 0])] = 0.0
    with pytest.raises(InputError, match="is a padding token among the ids"):
        bridge(silent, TOKENS)
    with pytest.raises(ConfigError, match="did you mean 'gelu'"):
        kernel("gelo", 1.0)


def test_command(capsys, tmp_path):
    arguments = ["theory", "bridge", "--schemes", "post,peri", "--dim", "64", "--depth", "2", "--out", str(tmp_path)]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bridges"]
    assert [f["scheme"] for f in found] == ["post_norm", "peri_norm"]
    assert (tmp_path / "bridge.html").exists()
    assert run(arguments) == 0
    assert "largest miss" in capsys.readouterr().out


def test_command_on_a_saved_model(capsys, tmp_path):
    sizes = HUGGING_FACE["llama"][2]
    config = transformers.AutoConfig.for_model("llama", vocab_size=64, bos_token_id=0, eos_token_id=0, **sizes)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    capsys.readouterr()
    arguments = ["theory", "bridge", str(tmp_path / "model"), "--out", str(tmp_path)]
    assert run([*arguments, "--schemes", "pre", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bridges"][0]["scheme"] == "pre_norm"
    assert run(arguments) == 2
    assert "say where the model's norms are" in capsys.readouterr().err
    assert run(["theory", "bridge", str(tmp_path / "nothing"), "--schemes", "pre", "--out", str(tmp_path)]) == 2
    assert "there is no folder" in capsys.readouterr().err
