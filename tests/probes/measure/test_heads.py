"""Attention rows of weights that are known exactly."""

import math

import pytest
import torch
from torch import nn

from normlab.probes.measure.heads import AttentionStatistics
from normlab.probes.trace.hooks import Record


def record(weights, attended=None, index=0):
    x = torch.zeros(weights.shape[0], weights.shape[2], 4)
    return Record(index, nn.Identity(), x, x, [], weights, attended)


UNIFORM = torch.full((2, 1, 8, 8), 1 / 8)
PARKED = torch.zeros(2, 1, 8, 8).index_fill(-1, torch.tensor(3), 1.0)


def test_uniform_and_parked_heads_side_by_side():
    statistics = AttentionStatistics()
    # Parked in one head: the uniform one makes all keys visible, so its entropy counts against eight of them.
    statistics(record(torch.cat([UNIFORM, PARKED], 1)))
    (row,) = statistics.rows()
    assert row.entropy == pytest.approx(0.5, abs=1e-6)
    assert row.max_weight == pytest.approx((1 / 8 + 1) / 2)
    assert row.sink_mass == pytest.approx((1 / 8 + 1) / 2)
    assert row.sink_heads == 0.5


def test_batches_are_averaged_and_the_position_is_the_commonest():
    statistics = AttentionStatistics()
    for weights in (PARKED, PARKED, PARKED.roll(1, -1)):
        statistics(record(weights))
    (row,) = statistics.rows()
    assert (row.sink_position, row.sink_mass, row.sink_heads) == (3, 1.0, 1.0)


def test_the_size_of_the_output_is_that_of_the_second_half():
    attended = torch.cat([torch.full((2, 4, 4), 100.0), torch.full((2, 4, 4), -3.0)], 1)
    statistics = AttentionStatistics()
    statistics(record(UNIFORM, attended, index=5))
    (row,) = statistics.rows()
    assert (row.layer, row.attention_output_rms) == (5, 3.0)


def test_without_weights_only_the_output_is_said():
    statistics = AttentionStatistics()
    statistics(Record(0, nn.Identity(), torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), [], None, torch.ones(1, 2, 4)))
    (row,) = statistics.rows()
    assert (row.attention_output_rms, row.entropy, row.sink_position) == (1.0, None, None)
    assert not math.isnan(row.attention_output_rms)
