"""Large coordinates."""

import math

import torch

from normlab.probes.measure.metrics.activations import median_magnitude, nonfinite, top_magnitude


def test_the_median_is_of_magnitudes_and_is_not_moved_by_a_few():
    x = torch.tensor([-3.0, 1.0, -2.0, 4.0, 1e9])
    assert median_magnitude(x) == 3.0
    assert median_magnitude(-x) == 3.0


def test_the_top_is_found_in_any_sequence_and_its_place_is_inside_that_sequence():
    x = torch.zeros(2, 5, 3, dtype=torch.bfloat16)
    x[1, 0, 2] = -7
    assert top_magnitude(x) == (7.0, 0, 2)


def test_a_mask_of_minus_infinity_counts():
    assert nonfinite(torch.full((2, 3), -math.inf)) == 6
    assert nonfinite(torch.ones(4, dtype=torch.bfloat16)) == 0
