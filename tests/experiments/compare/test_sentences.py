"""Sentences from made-up numbers: each says what its test supports and nothing more."""

from dataclasses import replace

from normlab.experiments.compare.sentences import answer, statement
from normlab.experiments.timing import RelativeCost
from normlab.stats import Paired, paired
from tests.experiments.compare.rows import BASE, row, setting


def test_a_difference_that_the_seeds_support():
    base = row("pre_norm", BASE)
    text = statement(row("peri_norm", [1.90, 2.01, 2.09], BASE), base)
    assert text.startswith("peri_norm ends 0.1000 below pre_norm (95 % interval -0.12")
    assert "paired over 3 seeds, p = 0.0033; -0.0900 without the seed that chose the rate)" in text
    assert "25 % more parameters than pre_norm" in statement(row("mhc", BASE, BASE, parameters_ratio=1.25), base)


def test_no_difference_found():
    text = statement(row("keel", [1.9, 2.2, 2.21], BASE), row("pre_norm", BASE))
    assert text.startswith("No difference found between keel and pre_norm: +0.0033")
    assert "with 3 seeds, differences below about 0.2" in text


def test_suggested_is_not_established():
    test = Paired(2, -0.3, -0.47, -0.12, p=0.03, adjusted=0.09)
    text = statement(row("keel", [1.7, 1.8], [2.0, 2.1], difference=test), row("pre_norm", [2.0, 2.1]))
    assert text.startswith("keel ends 0.3000 below pre_norm")
    assert "suggested, but not established" in text
    rows = [row("keel", [1.7, 1.8], [2.0, 2.1], difference=test), row("pre_norm", [2.0, 2.1])]
    said = answer(setting(), rows, "pre_norm", None)
    assert "suggested to be better, not established: keel" in said[1]
    assert "no difference" not in said[1]


def test_one_seed_establishes_nothing():
    text = statement(row("keel", [1.0], [2.0], untested="one_seed"), row("pre_norm", [2.0]))
    assert "one pair of seeds allows no test, so nothing is established" in text
    rows = [row("keel", [1.0], [2.0]), row("pre_norm", [2.0])]
    said = answer(setting(), rows, "pre_norm", None)
    assert said[1] == "The paired test over seeds finds: no test of keel (one pair of seeds allows no test)."


def test_divergence_and_edges_are_said():
    base = row("pre_norm", BASE)
    assert statement(row("no_norm", [None] * 3), base) == "no_norm diverged at every learning rate that was tried."
    assert "the highest one tried" in statement(row("keel", BASE, BASE, at_edge="highest"), base)


def test_survivors_are_named():
    """Whose seeds diverged is said in the answer, and is the reason where no test is left."""
    base, one = row("pre_norm", BASE), paired([-0.1])
    rows = [
        base,
        row("keel", [1.9, None, None], difference=one, untested="diverged"),
        row("admin", [2.1, 2.3, None], difference=paired([0.1, 0.2])),
    ]
    said = answer(setting(), rows, "pre_norm", None)[1]
    assert "no test of keel (2 of 3 seeds of keel diverged)" in said
    assert "2 of 3 seeds of keel, 1 of 3 seeds of admin diverged, and its mean is that of the others" in said


def test_answer_has_three_sentences():
    base = row("pre_norm", BASE, cost=RelativeCost(1.0, 1.0, 1.0, 1.0))
    rows = [
        row("peri_norm", [1.90, 2.01, 2.09], BASE, cost=RelativeCost(2.0, 1.9, 2.1, 1.0)),
        base,
        row("keel", [1.9, 2.2, 2.3], BASE),
        row("no_norm", [None] * 3),
    ]
    one, two, three = answer(setting(tokens=1000), rows, "pre_norm", 10.0)
    assert (
        one
        == "At 4 layers of width 8, 1,000 training tokens and 3 seeds, peri_norm has the lowest held-out loss, 2.0000."
    )
    assert two == ("The paired test over seeds finds: peri_norm better than pre_norm; no difference from pre_norm found for "
                   "keel; no_norm diverged.")  # fmt: skip
    assert three == ("For a training step, peri_norm, the slowest, takes 2.00 times (1.90 to 2.10) as long as pre_norm "
                     "(median and quartiles of steps in turn).")  # fmt: skip
    rows[0] = replace(rows[0], cost=RelativeCost(1.01, 0.97, 1.04, 1.0))
    said = answer(setting(tokens=1000), rows, "pre_norm", 10.0)
    assert said[2] == "No scheme's training step was seen to take 5 % longer or shorter than pre_norm's."
    rows[0] = replace(rows[0], cost=None)
    assert "not measured" in answer(setting(tokens=1000), rows, "pre_norm", 10.0)[2]


def test_what_learned_nothing_says_so():
    base = row("pre_norm", BASE)
    assert "learned frequencies, at most" in statement(row("keel", BASE, BASE, learned=False), base)
    flat = row("pre_norm", BASE, learned=False)
    said = answer(setting(), [flat], "pre_norm", None)
    assert said[0].startswith("Nothing was learned")
    test = Paired(3, 0.003, 0.002, 0.004)  # no p: noise around the frequencies
    idle = row("keel", BASE, BASE, learned=False, difference=test, untested="nothing_learned")
    both = statement(idle, flat)
    assert "neither learned more than the frequencies of tokens, so nothing is established" in both


def test_a_comparison_in_which_nothing_was_learned_says_so_and_ranks_nothing():
    rows = [row("keel", [3.4, 3.5], [3.4, 3.6], learned=False), row("pre_norm", [3.4, 3.6], learned=False)]
    said = answer(setting(), rows, "pre_norm", None)
    assert said[0].startswith("Nothing was learned: at ")
    assert "ranks nothing" in said[0]
    assert not any("has the lowest" in sentence or "better" in sentence for sentence in said)
    one = [row("keel", [2.4, 2.5], [3.4, 3.6], learned=True), row("pre_norm", [3.4, 3.6], learned=False)]
    assert "Nothing was learned" not in answer(setting(), one, "pre_norm", None)[0]


def test_a_best_rate_at_the_edge_gets_no_verdict():
    """The difference and its interval, and why nothing follows; whichever of the two is at the edge."""
    base, high = row("pre_norm", BASE), {"at_edge": "highest", "untested": "edge"}
    gap = Paired(3, -0.1, -0.12, -0.08)
    keel = row("keel", [1.9, 2.0, 2.1], BASE, difference=gap, **high)
    text = statement(keel, base)
    assert text.startswith("keel ends 0.1000 below pre_norm (95 % interval -0.1200 to -0.0800, paired over 3 seeds): the "
                           "best rate of keel is the highest one tried, so nothing is established.")  # fmt: skip
    said = answer(setting(), [keel, base], "pre_norm", 10.0)
    assert (
        said[1] == "The paired test over seeds finds: no test of keel (the best rate of keel is the highest one tried)."
    )
    edged = row("pre_norm", BASE, at_edge="lowest")
    inside = row("keel", [1.9, 2.0, 2.1], BASE, difference=gap, untested="edge")
    first, second, *_ = answer(setting(), [inside, edged], "pre_norm", 10.0)
    assert "the best rate of pre_norm is the lowest one tried" in second
    assert first.endswith(
        "pre_norm ends at 2.1000. Held-out loss minus that of pre_norm (95 % interval): keel -0.1000 (-0.1200 to -0.0800)."
    )
    for unequal in (replace(setting(), start="old"), replace(setting(), recipe="authors")):
        known = row("keel", [1.9, 2.0, 2.1], BASE)
        assert "lowest" not in answer(unequal, [known, base], "pre_norm", 10.0)[0]


def test_so_few_tokens_give_differences_and_no_order():
    base = row("pre_norm", BASE)
    rows = [base, row("keel", [1.8, 1.9, 2.0], BASE, untested="few_tokens", difference=Paired(3, -0.2, -0.25, -0.15)),
            row("admin", [None] * 3)]  # fmt: skip
    said = answer(setting(tokens=20_000), rows, "pre_norm", 2.0)
    assert "2 training tokens for each parameter of pre_norm" in said[0]
    assert "mostly measures how a model begins, so no order is given" in said[0]
    assert "--tokens 100000 trains on 10" in said[0]
    assert said[1] == "Held-out loss minus that of pre_norm (95 % interval): keel -0.2000 (-0.2500 to -0.1500)."
    assert said[2] == "admin diverged at every learning rate."
    text = " ".join([*said, *(statement(found, base) for found in rows)])
    for word in ("better", "worse", "lowest held-out", "below pre_norm", "significant", "p =", "established"):
        assert word not in text
    long = answer(setting(tokens=20_000), [replace(rows[1], untested=None), base], "pre_norm", 5.0)
    assert "keel has the lowest held-out loss" in long[0]


def test_a_scheme_with_a_control_is_set_beside_it_too():
    """Against the baseline scheme and start differ; against the control the scheme alone."""
    base = row("pre_norm", BASE)
    control = row("pre_norm @ peri_norm's start", [1.90, 2.01, 2.09], BASE, is_control=True)
    none = Paired(3, 0.001, -0.02, 0.022, p=0.9, adjusted=0.9)
    peri = row("peri_norm", [1.90, 2.01, 2.09], BASE, control=control.scheme, against_control=none)
    text = statement(peri, base)
    assert text.startswith("peri_norm ends 0.1000 below pre_norm")
    assert "Minus pre_norm @ peri_norm's start: +0.0010 (95 % interval -0.0200 to +0.0220, paired over 3 seeds)" in text
    one, two, three, _ = answer(setting(), [peri, control, base], "pre_norm", 10.0)
    assert "peri_norm has the lowest" in one
    assert "peri_norm, pre_norm @ peri_norm's start better than pre_norm" in two
    assert three == ("With equal starts (each beside its control) it finds: no difference from pre_norm found for "
                     "peri_norm.")  # fmt: skip
