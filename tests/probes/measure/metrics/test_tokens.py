"""Likeness of tokens: against the plain double sum, and under rotations."""

import math

import pytest
import torch

from normlab.probes.measure.metrics.tokens import effective_rank, token_cosine, token_variance


def test_the_mean_over_pairs_is_the_double_sum():
    x = torch.randn(6, 8, dtype=torch.float64)
    pairs = [torch.cosine_similarity(x[i], x[j], dim=0) for i in range(6) for j in range(6) if i != j]
    assert float(token_cosine(x)) == pytest.approx(float(sum(pairs)) / 30, abs=1e-12)
    assert float(token_variance(x)) == pytest.approx(5 / 6 * (1 - float(sum(pairs)) / 30), abs=1e-12)


def test_a_rotation_changes_nothing():
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    for metric in (token_cosine, token_variance, effective_rank):
        torch.testing.assert_close(metric(x @ turn), metric(x))


def test_the_rank_counts_directions_and_not_tokens():
    two = torch.eye(8, dtype=torch.float64)[:2].repeat(5, 1)
    assert float(effective_rank(two)) == pytest.approx(2)
    skewed = torch.tensor([[3.0, 0.0], [0.0, 1.0]])  # singular values 3 and 1
    assert float(effective_rank(skewed)) == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert float(effective_rank(5 * skewed)) == pytest.approx(float(effective_rank(skewed)))
