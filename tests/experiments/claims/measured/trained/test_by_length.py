"""Numbers for claims from runs by length: finished, or as far as they have come."""

import pytest

from normlab.experiments.claims.measured.trained.by_length import (
    at_length,
    over_lengths,
    reached,
    rows_of,
    settings_of,
    table,
    trained,
)
from normlab.experiments.executors.here import HereExecutor
from normlab.experiments.lengthgen.experiment import EXPERIMENT, runs_of
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.sweep import Sweep

OPTIONS = {
    "task": "set-complement(vocab=8)", "schemes": ("pre_norm(final_norm=False)", "post_norm"), "train_length": 4,
    "test_lengths": (4, 7), "test_count": 16, "steps": 30, "batch": 4, "evaluate_at": (10, 20),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("claims")


def test_the_first_rung_is_trained_and_later_ones_are_read(folder):
    first = reached(folder, OPTIONS, seeds=2)
    assert first.step == 10
    assert "Step 10 of 30" in first.note
    assert settings_of(first)["steps"] == 10
    request = LengthgenRequest(**OPTIONS, seeds=2, start="old")  # as the ledger pins it
    wanted = runs_of(request)
    Sweep(folder, HereExecutor(until=25), quiet=True).run(wanted, what="")
    assert reached(folder, OPTIONS, seeds=2).step == 20
    Sweep(folder, HereExecutor(), quiet=True).run(wanted, what="")
    whole = reached(folder, OPTIONS, seeds=2)
    assert (whole.step, whole.note) == (30, "All 30 steps were trained.")
    finished = EXPERIMENT.analyse([folder])
    for scheme in OPTIONS["schemes"]:
        assert table(rows_of(whole, scheme), "tv") == table(rows_of(finished, scheme), "tv")


def test_rows_become_numbers_a_seed(folder):
    found = trained(folder, OPTIONS, seeds=2)
    made = over_lengths(found, "post_norm", metric="tv", name="total variation")
    assert made.at == (4.0, 7.0)
    assert made.column(7.0) == at_length(rows_of(found, "post_norm"), "tv", 7)
    assert len(made.values) == 2
