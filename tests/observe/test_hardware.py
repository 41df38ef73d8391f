"""Predicted overheads: the formula by hand, the forms in their order, a roof that has its corner where it should."""

import dataclasses

import pytest
import torch

import normlab as nl
from normlab.errors import ConfigError
from normlab.observe.hardware import HARDWARE, Hardware, hardware, measure_cpu, predict, prediction_rows, roofline
from normlab.observe.rows import beyond_pre_norm

SHAPE = {"tokens": 512, "length": 128, "dtype": torch.bfloat16}


def config(scheme):
    return nl.TransformerConfig(vocab_size=32, dim=256, depth=8, heads=4, scheme=scheme, max_length=128)


@pytest.mark.parametrize("scheme", ["block_attn_res", "attn_res", "hyper_connections", "mhc"])
def test_fused_moves_less_than_compiled_and_that_less_than_eager(scheme):
    found = predict(config(scheme), HARDWARE["h100"], **SHAPE)
    assert 0 < found.fused.rows < found.compiled.rows < found.eager.rows
    assert found.forward_rows + found.backward_rows == pytest.approx(found.fused.rows)


def test_the_prediction_is_the_counter_and_the_bandwidth():
    """Where launches cost nothing, twice the bandwidth halves the overhead, and the rows are the counter's."""
    slow = Hardware("x", 1e12, 1e14, 1.0, 1.0, 0.0, "made up")
    fast = dataclasses.replace(slow, bandwidth=2e12)
    found, half = (predict(config("mhc"), machine, **SHAPE) for machine in (slow, fast))
    assert found.fused.overhead == pytest.approx(2 * half.fused.overhead)
    counted = beyond_pre_norm(config("mhc"), **SHAPE).training
    assert found.fused.rows == pytest.approx(counted.rows)
    assert found.fused.operations == pytest.approx(counted.operations)


def test_launches_are_the_limit_of_small_models():
    quick = Hardware("x", 1e15, 1e18, 1.0, 1.0, 5e-6, "made up")
    found = predict(config("mhc"), quick, **SHAPE)
    assert found.eager.overhead > 3 * found.fused.overhead > 0


def test_pre_norm_costs_nothing_beyond_itself():
    found = predict(config("pre_norm"), HARDWARE["a100"], **SHAPE)
    assert found.fused.rows == found.fused.overhead == found.compiled.overhead == 0


def test_the_roof_is_drawn_with_every_scheme():
    machine = HARDWARE["h100"]
    found = [predict(config(name), machine, **SHAPE) for name in ("block_attn_res", "mhc")]
    drawn = roofline(machine, found)
    assert machine.ridge == pytest.approx(989 * 0.5 / (3.35 * 0.88), rel=1e-3)
    assert "494 TFLOP/s, from 168" in drawn[0]
    assert any("A" in line for line in drawn[:9])
    assert drawn[-1].startswith("B  mhc: ")
    assert [row["scheme"] for row in prediction_rows(found)] == ["block_attn_res", "mhc"]


def test_this_machine_is_measured():
    found = measure_cpu(megabytes=1, size=64, repeats=1)
    assert found.bandwidth > 0
    assert found.peak > 0


def test_an_unknown_device_is_named():
    with pytest.raises(ConfigError, match="h100"):
        hardware("h10")
