from pathlib import Path

import pytest

from normlab.experiments.runs.records import FinishedRun, RunSummary
from normlab.experiments.stability.result import Edges, JudgedRun, Region, WarmupLine
from tests.experiments.tiny import tiny


@pytest.mark.parametrize(
    ("verdict", "stable", "learned"),
    [("stable", True, True), ("flat", True, False), ("spike", False, False), ("nan", False, False)],
)
def test_what_a_verdict_means(verdict, stable, learned):
    run = FinishedRun(Path("run"), tiny("keel", lr=0.5), RunSummary("finished", validation=1.0, context_free_loss=0.7))
    found = JudgedRun.judged(run, verdict=verdict, gradient_spikes=2)
    assert (found.stable, found.learned) == (stable, learned)
    assert (found.scheme, found.lr, found.loss, found.gradient_spikes) == ("keel", 0.5, 1.0, 2)


def test_a_seed_without_any_good_rate_counts_as_the_lowest():
    edges = Edges({0: 0.1, 1: None, 2: None}, none=[1], octaves=1.0)
    assert edges.bounded(1e-3) == {0: 0.1, 1: 1e-3, 2: None}  # seed 2: its edge lies above, and was not found


def test_a_region_knows_its_widest_line():
    none = Edges({}, [], 0.0)
    lines = [WarmupLine(w, None, None, [], None, None, 1e-3, none, none, {}) for w in (0, 9)]
    region = Region("deep_norm(layers=4)", 4, "width 8", 50, lines, 9, None, learned=True)
    assert region.widest_line is lines[1]
    assert (region.name, region.which) == ("deep_norm", " (width 8)")
