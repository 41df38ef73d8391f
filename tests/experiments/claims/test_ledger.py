import re

import pytest
import torch

from normlab.errors import ConfigError
from normlab.experiments.claims.book import claims
from normlab.experiments.claims.claim import Claim
from normlab.experiments.claims.criteria import Inside, NotMeasured
from normlab.experiments.claims.evidence import Evidence, curve, number
from normlab.experiments.claims.ledger import find, ledger, pages, seed_002
from normlab.experiments.claims.measured.trained.four_tasks import WORDS
from normlab.experiments.lengthgen.presets import FOUR_TASKS
from normlab.experiments.request import task_of


def test_every_claim_has_a_criterion_and_a_source():
    assert len(ledger()) == 113
    assert {seed: len(rows) for seed, rows in pages().items()} == {
        "000": 26,
        "001": 26,
        "002": 27,
        "003": 24,
        "004": 10,
    }
    for claim in ledger().values():
        assert claim.criterion.text(), claim.id
        assert claim.source, claim.id
        assert claim.statement.endswith("."), claim.id
    assert sum(isinstance(c.criterion, NotMeasured) for c in ledger().values()) <= 12


def test_criteria_state_numbers_and_what_they_read():
    for claim in ledger().values():
        if claim.measurable:
            assert re.search(r"\d", claim.criterion.text()), claim.id


def test_unknown_ids():
    assert find(" 002-02 ").id == "002-02"
    with pytest.raises(ConfigError, match="unknown claim '002-2'; did you mean"):
        find("002-2")
    with pytest.raises(ConfigError, match="is like 002-02"):
        Claim("two", "x", "y", Inside("m"))


def untrained(claim, *measurements):
    """The verdict of a claim, alone on its page, by models as they are before training."""
    found = find(claim).criterion.judge(Evidence(find(claim).evidence, measurements, (0, 1, 2, 3, 4)))
    return True if found.p_for < 0.05 else False if found.p_against < 0.05 else None


def around(value, spread=0.01):
    return [value + spread * i for i in (-2, -1, 0, 1, 2)]


def test_models_that_have_learned_nothing_confirm_nothing():
    """A uniform guess over 16 tokens is wrong by s/16 after s of them."""
    bare = "pre_norm(final_norm=false)"
    by_length = [[s / 16 + e for s in (8, 12, 15)] for e in around(0.0)]
    guess = [
        curve("total variation", (8, 12, 15), by_length, arm, axis="length") for arm in (bare, "post_norm", "pre_norm")
    ]
    rise = [
        number("total variation by length", around(8 / 16), "training length"),
        number("total variation by length", around(15 / 16), "twice the length"),
    ]
    assert untrained("002-10", *guess, *rise) is None
    assert untrained("002-02", *guess) is None
    assert (
        untrained("002-12", *guess, number("imbalance over gap beyond the training length", around(9.0), "pre_norm"))
        is None
    )
    exact = [
        number("rank that balance needs minus (v - 1)", 0.0, exact=True),
        number("residual of the construction at d = v - 1", 0.0, exact=True),
    ]
    widths = [number("total variation at the training length", around(0.5), arm) for arm in ("d = v/2", "d = v - 1")]
    assert untrained("002-06", *exact, *widths) is not True
    learned = [number("total variation at the training length", around(0.15), "d = v - 1")]
    assert untrained("002-06", *exact, widths[0], *learned) is True


def test_what_a_uniform_guess_makes_of_each_task():
    """A width has learned a task where it is at half of this or below."""
    for name, row in FOUR_TASKS.items():
        task = task_of(str(row["task"]))
        tokens = task.inputs(4000, row["train_length"], torch.Generator().manual_seed(0))
        law = task.law(tokens)[:, -task.window :]
        law = law[law.sum(-1) > 0]
        guess = (law - 1 / task.vocab_size).abs().sum(-1).mean() / 2
        assert seed_002.GUESS[WORDS[name]] == pytest.approx(float(guess), abs=0.01)


def test_nobody_learned_tomita_so_widths_decide_nothing():
    entry = claims(nulls=False)["002-19"]
    assert entry.decision.verdict == "undecided"
    assert "tomita" in entry.decision.would_change
