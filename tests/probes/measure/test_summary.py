"""Summary numbers of tables whose answer is known."""

import math

import pytest

from normlab.probes.measure.summary import LengthRow, contribution, exponents, layer_gradients, median, summarise
from normlab.probes.measure.table import LayerRow


def rows(count, **values):
    return [LayerRow(i, **{name: of(i) for name, of in values.items()}) for i in range(count)]


def test_growth_of_a_power_and_the_quarters_of_the_contributions():
    table = rows(8, norm_median=lambda i: 3 * math.sqrt(i + 1), ffn_norm=lambda i: 1.0, ffn_ratio=lambda i: 1 / (i + 1))
    found = summarise(table)
    assert found.growth == pytest.approx(math.sqrt(8))
    assert found.growth_exponent == pytest.approx(0.5)
    assert found.early_contribution == pytest.approx((1 + 1 / 2) / 2)
    assert found.late_contribution == pytest.approx((1 / 7 + 1 / 8) / 2)
    assert math.isnan(found.entropy)


def test_gradients_of_one_shared_block_are_those_of_the_stream():
    own = rows(3, gradient_norm=lambda i: 2.0**i, stream_gradient=lambda i: 9.0)
    assert layer_gradients(own) == [1, 2, 4]
    found = summarise(own)
    assert (found.gradient_spread, found.gradient_trend) == (4, pytest.approx(1))
    shared = rows(3, gradient_norm=lambda i: 5.0, stream_gradient=lambda i: 3.0 - i)
    assert layer_gradients(shared) == [3, 2, 1]
    assert summarise(shared).gradient_trend == pytest.approx(-1)


def test_shares_count_layers_over_their_limit():
    table = rows(4, entropy=lambda i: [0.96, 0.95, 0.1, 1.0][i], sink_mass=lambda i: [0.3, 0.31, 0, 0][i])
    found = summarise(table)
    assert (found.uniform_share, found.sink_share) == (0.5, 0.25)
    assert found.entropy == pytest.approx((0.96 + 0.95 + 0.1 + 1) / 4)


def test_collapse_is_looked_for_in_the_second_half_and_nan_is_passed_over():
    table = rows(4, token_cosine=lambda i: [0.9, 0.2, 0.3, math.nan][i])
    assert summarise(table).token_cosine == 0.3
    assert median([math.nan, 1.0, 3.0]) == 2.0
    assert math.isnan(contribution(LayerRow(0)))
    assert math.isnan(summarise([]).growth)


def test_exponents_over_length():
    lengths = [LengthRow(n, 1.0, 8 / n, 0.0, 5 * n**-0.5) for n in (64, 128, 512)]
    assert exponents(lengths) == (pytest.approx(-1), pytest.approx(-0.5))
    assert all(math.isnan(value) for value in exponents(lengths[:1]))
