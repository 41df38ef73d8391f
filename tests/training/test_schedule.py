import math

import pytest

from normlab.errors import ConfigError
from normlab.training import Schedule


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        (Schedule(kind="linear", warmup=10), {1: 0.1, 10: 1.0, 55: 0.5, 100: 0.0}),
        (Schedule(kind="linear", warmup=0, final=0.1), {1: 1 - 0.9 / 100, 50: 0.55, 100: 0.1}),
        (Schedule(kind="cosine", warmup=10), {5: 0.5, 55: 0.5, 100: 0.0, 77: 0.5 * (1 + math.cos(math.pi * 67 / 90))}),
        (Schedule(kind="wsd", warmup=10, decay=0.2), {10: 1.0, 80: 1.0, 90: 0.5, 100: 0.0}),
        (Schedule(kind="constant", warmup=4), {2: 0.5, 4: 1.0, 100: 1.0}),
    ],
)
def test_schedule_points(schedule, points):
    for n, factor in points.items():
        assert schedule.factor(n, 100) == pytest.approx(factor, abs=1e-12), n


def test_unknown_schedule_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        Schedule(kind="cosin")
