import numpy as np
import pytest

from normlab.dynamics import scheme_field
from normlab.dynamics.fields import Custom
from normlab.dynamics.flow.batch import Rules, pairwise

R, ALONG, SIZE = np.array([[2.0, 4.0]]), np.array([[0.3, 0.1]]), np.array([[0.5, 0.25]])


def rules(*names):
    return Rules([scheme_field(name).stage(0.0) for name in names])


@pytest.mark.parametrize(
    ("name", "inverse", "growth"),
    [
        ("post", [1.0, 1.0], [0.0, 0.0]),  # s = 1, the radius is fixed
        ("pre", [0.5, 0.25], [0.3, 0.1]),  # s = r, r' = <theta, A>
        ("peri", [1.0, 1.0], [0.6, 0.4]),  # s = r |A|, r' = <theta, A> / |A|
    ],
)
def test_rules_by_hand(name, inverse, growth):
    found = rules(name)(0.0, R, ALONG, SIZE)
    assert found[0] == pytest.approx(np.array([inverse]))
    assert found[1] == pytest.approx(np.array([growth]))


def test_a_batch_is_its_members_and_a_custom_rule_is_its_functions():
    three = [np.repeat(x, 3, axis=0) for x in (R, ALONG, SIZE)]
    together = rules("post", "pre", "peri")(1.5, *three)
    for i, name in enumerate(("post", "pre", "peri")):
        alone = rules(name)(1.5, R, ALONG, SIZE)
        assert together[0][i] == pytest.approx(alone[0][0])
        assert together[1][i] == pytest.approx(alone[1][0])
    own = Rules([Custom(s=lambda t, r, a, m: r, dr=lambda t, r, a, m: a)])
    assert own(0.0, R, ALONG, SIZE)[0] == pytest.approx(rules("pre")(0.0, R, ALONG, SIZE)[0])


def test_gaps_of_close_directions_keep_their_digits():
    """1 - cos(1e-9) = 5e-19 is below the rounding of 1 - <a, b>."""
    angles = np.array([0.0, 1e-9, 1.0])
    gaps = pairwise(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    expected = 2 * np.sin((angles[:, None] - angles[None, :]) / 2) ** 2
    assert gaps == pytest.approx(expected, rel=1e-7, abs=0)
