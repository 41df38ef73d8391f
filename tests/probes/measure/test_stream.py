"""Streamed statistics of records that are written by hand."""

import math

import pytest
import torch
from torch import nn

from normlab.probes.measure.stream import Means, StreamStatistics
from normlab.probes.trace.hooks import Part, Record

EAST, NORTH = torch.tensor([1.0, 0, 0, 0]), torch.tensor([0, 1.0, 0, 0])


def record(index, before, after, **more):
    before, after = (x.expand(1, 3, 4).contiguous() for x in (before, after))
    return Record(index, nn.Identity(), before, after, [Part("ffn", before, after - before, after)], **more)


def test_means_count_what_was_given():
    means = Means()
    means.add(a=1.0, b=5.0)
    means.add(a=4.0)
    assert means.values() == {"a": 2.5, "b": 5.0}


def test_a_quarter_turn_by_hand():
    statistics = StreamStatistics()
    statistics(record(0, 2 * EAST, 2 * EAST + 2 * NORTH))
    (row,) = statistics.rows()
    assert row.norm == row.norm_median == pytest.approx(math.sqrt(8))
    assert row.rms == pytest.approx(math.sqrt(8 / 4))
    assert (row.ffn_norm, row.ffn_ratio, row.ffn_cosine) == (2.0, 1.0, 0.0)
    assert row.attention_norm is None
    assert row.block_influence == pytest.approx(1 - math.sqrt(0.5))
    assert row.angular_distance == pytest.approx(0.25)
    assert row.token_cosine == pytest.approx(1, abs=1e-6)
    assert row.effective_rank == pytest.approx(1, abs=1e-6)
    assert statistics.embedding.norm == 2.0


def test_angles_over_runs_of_layers():
    statistics = StreamStatistics()
    statistics(record(0, EAST, NORTH))
    statistics(record(1, NORTH, -EAST))
    assert statistics.angular_matrix() == (pytest.approx((0.5, 1.0)), pytest.approx((0.5,)))


def test_a_massive_coordinate_is_counted_and_placed():
    x = torch.full((1, 3, 4), 0.01)
    x[0, 2, 1] = -500.0
    statistics = StreamStatistics()
    statistics(Record(0, nn.Identity(), torch.ones(1, 3, 4), x, []))
    (row,) = statistics.rows()
    assert (row.massive, row.max_magnitude, row.max_position, row.max_coordinate) == (1.0, 500.0, 2, 1)
    assert row.token_cosine_robust == pytest.approx(1)  # without that coordinate all tokens are alike
    assert row.token_cosine < 0.8


def test_gains_of_mixings_multiply_over_layers_and_begin_anew_with_each_batch():
    statistics = StreamStatistics()
    for _ in range(2):
        for index in (0, 1):
            statistics(record(index, EAST, EAST, mixings=[2 * torch.eye(2)]))
    assert [(row.mixing_gain, row.composite_gain) for row in statistics.rows()] == [(2.0, 2.0), (2.0, 4.0)]
