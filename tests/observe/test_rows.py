"""Rows and operations counted on the meta device: by hand where that can be done, and the limits that schemes keep."""

import pytest
import torch

import normlab as nl
from normlab.observe.rows import Counter, beyond_pre_norm, counted, size_of, traffic

# Beyond pre_norm in training, for each sublayer: rows, operations.
LIMITS = {"block_attn_res": (10, 30), "attn_res": (40, 30), "hyper_connections": (60, 30), "mhc": (60, 30)}


def config(scheme, **shape):
    shape = {"vocab_size": 32, "dim": 4096, "depth": 32, "heads": 32, "max_length": 2048} | shape
    return nl.TransformerConfig(scheme=scheme, **shape)


@pytest.mark.parametrize("scheme", LIMITS)
def test_rows_and_operations_beyond_pre_norm(scheme):
    """At width 4096 and 32 layers, in bfloat16, as a GPU would run it."""
    found = beyond_pre_norm(config(scheme), tokens=8192, length=2048).training
    rows, operations = LIMITS[scheme]
    assert 0 < found.rows <= rows
    assert 0 < found.operations <= operations


def test_an_addition_is_two_rows_read_and_one_written():
    x = torch.empty(8, 4, device="meta")
    with Counter() as counter:
        _ = x + x[:4].repeat(2, 1)
    assert counter.operations == 2
    assert counter.size == (8 * 4 + 4 * 4) * 4 + 3 * 8 * 4 * 4


def test_views_are_free_and_broadcasts_are_there_once():
    x = torch.empty(8, 4, device="meta")
    with Counter() as counter:
        x.view(4, 8).t()
    assert counter.size == counter.operations == 0
    assert size_of(torch.empty(1, 4).expand(8, 4)) == 16


def test_the_reference_moves_far_more():
    """The count can fail: reads that stack all sources move several times as much as fast ones."""
    few = {"depth": 8, "dim": 256, "heads": 4}
    fast = traffic(config("attn_res", **few), tokens=512, length=128).training
    plain = traffic(config(nl.scheme("attn_res", read="reference"), **few), tokens=512, length=128).training
    base = traffic(config("pre_norm", **few), tokens=512, length=128).training
    assert plain.rows - base.rows > 3 * (fast.rows - base.rows)


def test_a_model_is_counted_forwards_and_backwards():
    model = nl.Transformer(config("pre_norm", depth=1, dim=8, heads=1, vocab_size=5)).to("meta")
    forward, backward = counted(lambda: model(torch.zeros(1, 3, dtype=torch.long, device="meta")).sum())
    assert "depth_rms" in forward.by_name
    assert "depth_rms_backward" in backward.by_name
