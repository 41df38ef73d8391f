from normlab.experiments.lengthgen.result import ARM, METRICS, Arm, ScoreRow, Spread, SummaryRow
from normlab.experiments.runs.records import LengthScore
from normlab.results import plain
from tests.experiments.tiny import tiny

ONE = Arm("nope", "none", 16, 8, 0.5, "keel")


def test_an_arm_is_what_varies_but_for_the_seed():
    run = tiny("keel", lr=0.5)
    run = run.replace(model=run.model.replace(positions="nope"))
    assert Arm.of(run) == Arm.of(run.replace(train=run.train.replace(seed=9))) == ONE
    for changes, fix in (({"softmax": "ssmax"}, "ssmax"), ({"head_norm": True}, "head_norm")):
        assert Arm.of(run.replace(model=run.model.replace(**changes))).fix == fix


def test_rows_are_written_flat():
    row = ScoreRow(ONE, 3, "ema", 32, "finished", LengthScore(tv=0.25, loss=float("nan")))
    found = plain(row)
    assert list(found) == [*ARM, "seed", "weights", "length", "status", *METRICS]
    assert (found["scheme"], found["seed"], found["tv"], found["loss"], found["auc"]) == ("keel", 3, 0.25, None, None)
    summary = plain(SummaryRow(ONE, "raw", 32, 5, 1, {"tv": Spread(0.2, 0.1, 0.4)}))
    assert (summary["tv"], summary["tv_low"], summary["tv_high"], summary["diverged"]) == (0.2, 0.1, 0.4, 1)
