import pytest

from normlab.dynamics import scalar, scheme_field
from normlab.dynamics.expressions import formula
from normlab.dynamics.fields import heated
from normlab.errors import ConfigError


def test_formulas():
    found = formula("0.2 + 0.8*min(t/2.5, 1)", option="--heat")
    assert [found(t) for t in (0.0, 1.25, 9.0)] == pytest.approx([0.2, 0.6, 1.0])
    assert formula("exp(-t)**2 + sqrt(4) - log(1)", option="x")(0.0) == pytest.approx(3.0)
    assert str(found) == "0.2 + 0.8*min(t/2.5, 1)"


@pytest.mark.parametrize(
    "text", ["", "x", "t.real", "__import__('os')", "open('f')", "[t]", "True", "t if t else 1", "min()"]
)
def test_nothing_but_arithmetic(text):
    with pytest.raises(ConfigError, match="a number or a formula in t"):
        formula(text, option="--alpha")


def test_values_must_be_usable():
    with pytest.raises(ConfigError, match="must be positive"):
        formula("t", option="--alpha")
    with pytest.raises(ConfigError, match="at most 200"):
        formula("1+" * 200 + "1", option="--alpha")
    with pytest.raises(ConfigError, match="no finite value at t = 1"):
        formula("1/(1-t)", option="--alpha")(1.0)
    with pytest.raises(ConfigError, match="no finite value"):
        formula("10.0**400", option="--alpha")


def test_a_formula_is_the_function_that_it_writes():
    by_text = scalar(scheme_field("ngpt", alpha="1/(1+t)"), n=32, beta=2.0, time=4.0)
    by_hand = scalar(scheme_field("ngpt", alpha=lambda t: 1 / (1 + t)), n=32, beta=2.0, time=4.0)
    assert by_text.log_gap == pytest.approx(by_hand.log_gap)


def test_heat_is_a_factor_on_beta():
    row = scheme_field("post_norm")
    half = scalar(heated(row, lambda t: 0.5), n=64, beta=4.0, time=3.0)
    assert half.log_gap == pytest.approx(scalar(row, n=64, beta=2.0, time=3.0).log_gap)
    cooler = scalar(heated(row, formula("0.2 + 0.8*min(t/2.5, 1)", option="x")), n=256, beta=5.0, time=10.0)
    assert cooler.hits[0.5] < scalar(row, n=256, beta=5.0, time=10.0).hits[0.5], "a small beta at first starts sooner"
