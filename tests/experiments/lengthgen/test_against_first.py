import pytest
import torch

from normlab.experiments.lengthgen.against_first import against_first, median_interval
from normlab.experiments.lengthgen.result import Arm, ScoreRow
from normlab.experiments.runs.records import LengthScore


def row(scheme, seed, tv, loss=None):
    arm = Arm("nope", "none", 8, 8, 1e-3, scheme)
    return ScoreRow(arm, seed, "raw", 4, "finished", LengthScore(tv=tv, loss=loss))


@pytest.mark.parametrize(
    ("n", "low", "high", "coverage"), [(5, 0, 4, 0.9375), (8, 0, 7, 0.9921875), (9, 1, 7, 0.9609375), (4, 0, 3, 0.875)]
)
def test_intervals_are_order_statistics(n, low, high, coverage):
    assert median_interval([float(i) for i in reversed(range(n))]) == (low, high, coverage)


def test_intervals_cover_as_often_as_they_say():
    generator = torch.Generator().manual_seed(0)
    draws = torch.empty(4000, 9).exponential_(generator=generator)
    median, hits = torch.tensor(2.0).log().item(), 0
    for values in draws.tolist():
        low, high, coverage = median_interval(values)
        hits += low <= median <= high
    assert hits / 4000 == pytest.approx(coverage, abs=0.012)


def test_all_seeds_on_one_side_decide_and_one_on_the_other_does_not():
    base = [row("a", s, 0.5 + 0.1 * s) for s in range(5)]
    better = [row("b", s, 0.4 + 0.1 * s) for s in range(5)]
    mixed = [row("c", s, 0.5 + 0.1 * s + (0.1 if s else -0.1)) for s in range(5)]
    found = {line.arm.scheme: line for line in against_first([*base, *better, *mixed])}
    assert set(found) == {"b", "c"}
    assert found["b"].verdict == "better"
    assert found["b"].difference == pytest.approx(-0.1)
    assert found["c"].verdict == "undecided"
    (few,) = against_first([*base[:4], *better[:4]])
    assert few.verdict == "undecided"  # four seeds reach 0.875 only


def test_without_a_law_the_loss_decides():
    rows = [row(s, seed, None, loss=loss) for s, loss in (("a", 1.0), ("b", 2.0)) for seed in range(5)]
    (line,) = against_first(rows)
    assert (line.metric, line.verdict, line.difference) == ("loss", "worse", 1.0)
    assert against_first([]) == []
