"""Each metric against a closed form."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normlab.probes.measure import metrics


def test_cosine_and_block_influence_of_a_known_angle():
    a = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    b = torch.tensor([[math.cos(0.3), math.sin(0.3)], [5 * math.cos(0.7), 5 * math.sin(0.7)]])
    assert metrics.cosine(a, b).tolist() == pytest.approx([math.cos(0.3), math.cos(0.7)], rel=1e-6)
    expected = 1 - (math.cos(0.3) + math.cos(0.7)) / 2
    assert float(metrics.block_influence(a, b)) == pytest.approx(expected, rel=1e-6)


def test_cosine_with_a_zero_vector_is_zero_not_nan():
    assert metrics.cosine(torch.zeros(3, 4), torch.ones(3, 4)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("angle", [1e-4, 0.5, math.pi / 2, 3.0, math.pi])
def test_angular_distance_keeps_its_digits_near_zero(angle):
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    b = 7 * torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    assert float(metrics.angular_distance(a, b)) == pytest.approx(angle / math.pi, rel=1e-9)


def test_growth_exponent_reads_a_power_and_the_rate_an_exponential():
    assert metrics.growth_exponent([3 * layer**0.5 for layer in range(1, 20)]) == pytest.approx(0.5)
    assert metrics.exponential_rate([math.exp(0.25 * layer) for layer in range(9)]) == pytest.approx(0.25)


@given(st.floats(-0.02, 0.99), st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_token_cosine_of_equiangular_tokens(cosine, n):
    gram = torch.full((n, n), cosine, dtype=torch.float64).fill_diagonal_(1.0)
    x = torch.linalg.cholesky(gram) * torch.linspace(1, 5, n, dtype=torch.float64)[:, None]  # lengths do not matter
    assert float(metrics.token_cosine(x)) == pytest.approx(cosine, abs=1e-12)
    assert float(metrics.token_variance(x)) == pytest.approx((1 - cosine) * (n - 1) / n, abs=1e-12)


def test_token_cosine_is_per_sequence():
    same, different = torch.ones(4, 8), torch.eye(4, 8)
    assert metrics.token_cosine(torch.stack([same, different])).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(("n", "d"), [(5, 9), (9, 5), (6, 6)])
def test_effective_rank_of_equal_and_of_known_singular_values(n, d):
    k = min(n, d)
    left = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0][:, :k]
    right = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0][:k]
    assert float(metrics.effective_rank(left @ right)) == pytest.approx(k, rel=1e-9)
    values = torch.tensor([4.0, 1.0] + [0.0] * (k - 2), dtype=torch.float64)
    expected = math.exp(-(0.8 * math.log(0.8) + 0.2 * math.log(0.2)))
    assert float(metrics.effective_rank(left @ torch.diag(values) @ right)) == pytest.approx(expected, rel=1e-5)


def test_effective_rank_centered_ignores_a_common_offset():
    x = torch.randn(40, 6, dtype=torch.float64)
    x = x - x.mean(0)
    assert float(metrics.effective_rank(x + 1e3, center=True)) == pytest.approx(float(metrics.effective_rank(x)))
    assert float(metrics.effective_rank(x + 1e3)) < 1.1


def causal_uniform(n):
    rows = torch.ones(n, n).tril()
    return (rows / rows.sum(-1, keepdim=True))[None, None]


def test_uniform_attention_has_entropy_one_and_known_sink_and_max():
    weights = causal_uniform(8)
    assert metrics.visible_keys(weights).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert float(metrics.normalised_entropy(weights)) == pytest.approx(1, abs=1e-6)
    expected = sum(1 / q for q in (5, 6, 7, 8)) / 4
    assert float(metrics.max_weight(weights)) == pytest.approx(expected, rel=1e-6)
    assert float(metrics.sink(weights)[0]) == pytest.approx(expected, rel=1e-6)


def test_a_sink_is_found_with_its_position():
    weights = 0.3 * causal_uniform(8)
    weights[..., 2:, 1] += 0.7
    weights[..., 0, 0] = 1
    mass, position = metrics.sink(weights)
    assert int(position) == 1
    assert float(mass) == pytest.approx(0.7 + 0.3 * sum(1 / q for q in (5, 6, 7, 8)) / 4, rel=1e-6)


def test_sharp_attention_has_entropy_zero_and_a_window_is_not_counted_as_the_whole():
    assert float(metrics.normalised_entropy(torch.eye(6)[None, None], torch.full((6,), 6))) == 0
    band = torch.ones(10, 10).tril() * torch.ones(10, 10).triu(-2)  # sliding window of three
    weights = (band / band.sum(-1, keepdim=True))[None, None]
    assert metrics.visible_keys(weights).tolist() == [1, 2] + [3] * 8
    assert float(metrics.normalised_entropy(weights)) == pytest.approx(1, abs=1e-6)


def test_top_magnitude_says_where():
    x = torch.randn(3, 5, 7) * 0.1
    x[2, 4, 6] = -300
    assert metrics.top_magnitude(x) == (300.0, 4, 6)


def test_median_of_a_sample_is_close_and_sees_every_coordinate():
    x = torch.zeros(8, 512, 64)
    x[..., 1:] = 1.0  # a stride of 8 would look at columns 0, 8, 16, ...
    x[..., ::2] = 0.0
    assert metrics.median_magnitude(torch.randn(64, 512, 64)) == pytest.approx(0.6745, rel=0.03)
    assert metrics.median_magnitude(x) in (0.0, 1.0)
    x[..., ::2] = 3.0
    assert metrics.median_magnitude(x + 1) in (2.0, 4.0)


def test_nonfinite_counts():
    assert metrics.nonfinite(torch.tensor([1.0, math.nan, math.inf, -math.inf])) == 3


def test_homogenisation_of_equal_and_of_orthogonal_streams():
    assert float(metrics.homogenisation(torch.ones(5, 4, 8))) == pytest.approx(1)
    assert float(metrics.homogenisation(torch.eye(4, 8).expand(5, 4, 8))) == pytest.approx(0, abs=1e-6)


def test_composite_gain():
    mix = torch.full((4, 4), 0.25)
    assert metrics.composite_gain([mix, torch.eye(4), mix]) == pytest.approx(1)
    assert metrics.composite_gain([torch.ones(4, 4)] * 3) == pytest.approx(64)  # the bug of a public library: x4 a time


def test_gain_is_the_larger_of_rows_and_columns_and_a_mean_over_tokens():
    lopsided = torch.tensor([[1.0, 2.0], [0.0, -3.0]])  # rows 3 and 3, columns 1 and 5
    assert float(metrics.mixing_gain(lopsided)) == 5
    assert float(metrics.mixing_gain(torch.stack([lopsided, torch.eye(2)]))) == 3
    order = [torch.tensor([[0.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])]
    assert metrics.composite_gain(order) == 4  # second @ first has rows (0, 2), (0, 2)
    assert metrics.composite_gain(order[::-1]) == 2


def test_effective_sources_counts_equal_weights():
    assert float(metrics.effective_sources(torch.tensor([0.0, -2.0, 2.0, 2.0]))) == pytest.approx(3)
    assert float(metrics.effective_sources(torch.tensor([1.0, 0.0]))) == pytest.approx(1)


def test_long_attention_is_sampled_without_changing_what_it_says():
    torch.manual_seed(0)
    logits = torch.randn(1, 2, 1024, 1024).masked_fill(~torch.ones(1024, 1024, dtype=torch.bool).tril(), -math.inf)
    weights = (3 * logits).softmax(-1)
    seen = metrics.visible_keys(weights)
    assert seen.tolist() == list(range(1, 1025))
    all_queries = (torch.special.entr(weights).sum(-1)[..., 1:] / seen[1:].float().log()).mean(-1)
    torch.testing.assert_close(metrics.normalised_entropy(weights), all_queries, rtol=0, atol=0.02)
