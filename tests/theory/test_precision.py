import pytest
import torch

from normlab.theory import complement_theorem as theory
from normlab.theory import precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("c", [1.0, 7.3, 40.0])
def test_a_displacement_is_lost_at_the_stated_length(dtype, c):
    first = precision.lost_from(c, dtype)
    assert precision.resolved(c / (0.99 * first), dtype)  # not first - 1: torch rounds float64 to half in two steps
    assert not precision.resolved(c / first, dtype)


def test_with_a_norm_no_length_and_no_vocabulary_loses_it():
    smallest = min(float(theory.gap_with_norm(s, v, 1.0)) for v in (2, 3, 16, 257, 4096) for s in {1, v // 2, v - 1})
    assert smallest >= precision.least_gap_with_norm(1.0) - 1e-12
    assert float(theory.gap_with_norm(1, 2, 1.0)) == pytest.approx(precision.least_gap_with_norm(1.0))


@pytest.mark.parametrize("s", [1, 4, 8, 31])
def test_the_scale_needed_gives_the_total_variation(s):
    c, gain = precision.scale_needed(0.01, s, 32)
    assert float(theory.total_variation(s, 32, c / s)) == pytest.approx(0.01)
    assert float(theory.total_variation(s, 32, theory.gap_with_norm(s, 32, gain))) == pytest.approx(0.01)
    assert precision.scale_needed(0.5, 4, 32) == (0.0, 0.0)
