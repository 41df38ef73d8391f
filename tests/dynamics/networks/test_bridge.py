"""The theory laid over real networks of ours with random weights."""

import numpy as np
import pytest
import torch

from normlab.dynamics import FIELDS
from normlab.dynamics.networks.bridge import bridge, random_tokens
from normlab.dynamics.networks.kernel import kernel
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
