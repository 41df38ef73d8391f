"""The choice of the learning rate from made-up losses. test_experiment.py has runs that were trained."""

import json
import random
from pathlib import Path

import pytest

from normlab.errors import InputError
from normlab.experiments.compare.analyse import analyse, best_rate
from normlab.experiments.compare.page import build
from normlab.experiments.compare.result import Comparison
from normlab.experiments.compare.tables import markdown
from normlab.experiments.compare.terminal import show
from normlab.experiments.runs.records import FinishedRun, RunSummary, ValidationRecord
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


# -- a whole comparison of made-up losses ----------------------------------------------------------------------------------
RATES = (1e-3, 3e-3, 1e-2)


def compared(losses, *, parameters=1, best=3e-3):
    """A setting from {scheme: losses by seed} at the best of three rates; the others were run with the first seed."""
    runs = []
    for scheme, own in losses.items():
        found = [(best, seed, loss) for seed, loss in enumerate(own)]
        found += [(lr, 0, own[0] + 1) for lr in RATES if lr != best]
        runs += [
            FinishedRun(Path(f"{scheme}-{lr}-{seed}"), tiny(scheme, lr=lr, seed=seed),
                        RunSummary("finished", validation=loss, parameters=parameters, context_free_loss=9.0))
            for lr, seed, loss in found
        ]  # fmt: skip
    return analyse(runs).settings[0]


TOKENS = 8 * 4 * 8  # of a run of `tiny`


def test_the_same_scheme_twice_is_told_apart_in_one_comparison_of_twenty_and_a_planted_effect_is_found(
    no_logs, monkeypatch
):
    monkeypatch.setattr("normlab.experiments.compare.analyse.start_row", lambda _: None)
    rng = random.Random(0)

    def verdicts(effect):
        names = ("pre_norm", "keel", "ln_scaling", "peri_norm")
        found = compared({n: [rng.gauss(1.0 - effect * (n == "keel"), 0.1) for _ in range(5)] for n in names})
        return {row.scheme for row in found.schemes if row.difference.significant}

    assert sum(bool(verdicts(0.0)) for _ in range(200)) <= 20  # 10 are expected: 5 % for all three together
    assert sum("keel" in verdicts(0.5) for _ in range(20)) >= 18


@pytest.fixture
def no_logs(monkeypatch):
    monkeypatch.setattr(FinishedRun, "validation", lambda run: [ValidationRecord(8, run.loss)])
    for name in ("layers", "training"):
        monkeypatch.setattr(FinishedRun, name, lambda _: [])


LOSSES = {"pre_norm": [2.0, 2.1, 2.2], "peri_norm": [1.9, 2.01, 2.09], "keel": [1.5, 1.61, 1.69]}


def test_below_five_tokens_a_parameter_there_is_no_order(no_logs, capsys):
    """Terminal, page and tables: differences and intervals, no p, no better or worse, the best not on top."""
    short = compared(LOSSES, parameters=TOKENS // 4)
    assert short.tokens_per_parameter == pytest.approx(4)
    assert [row.scheme for row in short.schemes] == ["pre_norm", "keel", "peri_norm"]
    assert all(row.difference.p is None for row in short.schemes)
    keel = next(row for row in short.schemes if row.scheme == "keel")
    assert (keel.untested, keel.difference.low < keel.difference.mean < keel.difference.high) == ("few_tokens", True)
    result = Comparison([], [short], [])
    show(result)
    texts = [
        capsys.readouterr().out,
        build(result).render(),
        markdown(result),
        json.dumps(result.to_dict()["settings"]),
    ]
    for text in texts:
        assert "no order is given" in " ".join(text.split())
        for word in ("p (Holm)", "has the lowest", "better than", "No difference found", "established"):
            assert word not in text
    long = compared(LOSSES, parameters=TOKENS // 5)
    assert [row.scheme for row in long.schemes] == ["keel", "peri_norm", "pre_norm"]
    assert long.answer[0].startswith("At 2 layers of width 16")
    assert "keel has the lowest held-out loss" in long.answer[0]
    assert "keel, peri_norm better than pre_norm" in long.answer[1]


@pytest.mark.parametrize(("best", "verdict"), [(1e-3, False), (3e-3, True), (1e-2, False)])
def test_a_difference_needs_a_best_rate_inside_the_grid(best, verdict, no_logs):
    found = compared(LOSSES, best=best)
    keel = next(row for row in found.schemes if row.scheme == "keel")
    assert keel.difference.significant is verdict
    assert (keel.untested is None) is verdict
    assert (keel.difference.low, keel.difference.high) != (None, None)
    assert ("better than pre_norm" in found.answer[1]) is verdict
    assert ("the best rate of" in found.answer[1]) is not verdict
