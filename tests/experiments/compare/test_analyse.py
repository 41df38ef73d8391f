"""The choice of the learning rate from made-up losses. test_experiment.py has runs that were trained."""

from pathlib import Path

import pytest

from normlab.errors import InputError
from normlab.experiments.compare.analyse import analyse, best_rate
from normlab.experiments.runs.records import FinishedRun, RunSummary
from tests.experiments.tiny import tiny


def run(lr, seed, loss):
    status = "diverged" if loss is None else "finished"
    return FinishedRun(Path(f"{lr}-{seed}"), tiny(lr=lr, seed=seed), RunSummary(status, validation=loss))


def test_the_rate_with_the_lowest_mean_is_chosen():
    best, table = best_rate([run(1e-3, 0, 2.0), run(1e-2, 0, 1.5), run(1e-1, 0, 1.8)])
    assert best == 1e-2
    assert [(found.lr, found.mean, found.seeds) for found in table] == [(1e-3, 2.0, 1), (1e-2, 1.5, 1), (1e-1, 1.8, 1)]


def test_only_seeds_that_every_rate_has_count():
    """The second seed of the worse rate was lucky; the better rate never ran it."""
    best, table = best_rate([run(1e-3, 0, 1.5), run(1e-2, 0, 2.0), run(1e-2, 1, 0.1)])
    assert best == 1e-3
    assert [found.seeds for found in table] == [1, 1]


def test_a_rate_with_a_diverged_seed_is_not_chosen_unless_all_are():
    runs = [run(1e-3, 0, 2.0), run(1e-3, 1, 2.0), run(1e-2, 0, 1.0), run(1e-2, 1, None)]
    best, table = best_rate(runs)
    assert best == 1e-3
    assert (table[1].mean, table[1].diverged) == (None, 1)
    assert best_rate([run(1e-3, 0, None), run(1e-2, 0, None)])[0] == 1e-3


def test_nothing_to_compare_is_a_sentence():
    with pytest.raises(InputError, match="no finished run was found to compare"):
        analyse([])
