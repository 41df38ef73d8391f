from normlab.experiments.executors.here import HereExecutor
from normlab.experiments.lengthgen.experiment import EXPERIMENT
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.sweep import Sweep
from normlab.tasks import task
from normlab.training.record import read_log


def asked():
    arms = ("pre_norm(final_norm=False)", "post_norm")
    sizes = {"train_length": 4, "test_lengths": (4, 7), "test_count": 8, "steps": 20, "batch": 4, "seeds": 1}
    return LengthgenRequest(task=task("set_complement", vocab=8), schemes=arms, evaluate_at=(5,), **sizes)


def test_all_runs_get_to_a_step_before_one_goes_on(tmp_path):
    request = asked()
    runs = EXPERIMENT.plan(request, {}, 0, tmp_path).runs
    sweep = Sweep(tmp_path / "a", HereExecutor(until=10), quiet=True)
    sweep.settle(request)
    assert sweep.run(runs, what="") == []
    steps = [read_log(tmp_path / "a" / name / "log.jsonl")[-1]["step"] for name in runs]
    assert steps == [10, 10]
    done = Sweep(tmp_path / "a", HereExecutor(), quiet=True).run(runs, what="")
    assert [run.summary.status for run in done] == ["finished", "finished"]
    whole = EXPERIMENT.carry_out(request, Sweep(tmp_path / "b", HereExecutor(), quiet=True))
    assert [row.score for row in whole.rows] == [row.score for row in EXPERIMENT.analyse([tmp_path / "a"]).rows]


def test_a_fault_is_an_outcome(tmp_path):
    (outcome,) = HereExecutor().run([tmp_path / "nothing"])
    assert "not the folder of a run" in outcome.error
