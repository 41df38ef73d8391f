"""Weights beside the call: weights @ values is what torch itself returns."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from normlab.probes.trace.sdpa import WatchAttention, attention_weights

OPTIONS = [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": "bool"}, {"attn_mask": "float", "scale": 2.0}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_weights_give_the_output_of_torch(options):
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    mask = torch.ones(6, 6, dtype=torch.bool).tril(1)
    masks = {"bool": mask, "float": torch.randn(6, 6)}
    options = {key: masks.get(value, value) if key == "attn_mask" else value for key, value in options.items()}
    kept = []
    with WatchAttention(kept.append):
        output = scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(kept[0] @ v, output)
    torch.testing.assert_close(kept[0].sum(-1), torch.ones(2, 4, 6))


def test_grouped_keys_are_repeated_for_the_queries_of_their_group():
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    weights = attention_weights(q, k, enable_gqa=True)
    theirs = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(weights @ v.repeat_interleave(2, 1), theirs)


def test_positional_arguments_fewer_dimensions_and_other_functions():
    q = torch.randn(3, 5, 8)
    kept = []
    with WatchAttention(kept.append):
        scaled_dot_product_attention(q, q, q, None, 0.0, True)
        torch.relu(q)
    scaled_dot_product_attention(q, q, q)  # outside: not watched
    assert [weights.shape for weights in kept] == [(3, 1, 5, 5)]
    assert float(kept[0].triu(1).abs().max()) == 0
