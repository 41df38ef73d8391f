"""A sweep's folder: settled once, grown but never shrunk, read from the disk alone, old folders too."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from normlab.errors import ConfigError, InputError
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.runs.folder import load, prepare
from normlab.experiments.stability.request import StabilityRequest
from normlab.experiments.sweep import failure, read_all, read_request, read_runs, read_sweep, unfinished
from tests.experiments.tiny import alone, sweep_of, tiny


def test_a_sweep_is_settled_once(tmp_path):
    sweep, asked = sweep_of(tmp_path), CompareRequest(budget="1m")
    assert sweep.settle(asked, lambda: {"steps": 7}) == {"steps": 7}
    assert sweep.settle(asked, lambda: {"steps": 8}) == {"steps": 7}
    with pytest.raises(ConfigError, match="budget was '1m', now '2m'"):
        sweep.settle(CompareRequest(budget="2m"))
    with pytest.raises(ConfigError, match="holds another sweep, of the kind 'compare'"):
        sweep.settle(StabilityRequest())
    (tmp_path / "sweep.json").write_text(json.dumps({"format": 9, "normlab": "9.0"}))
    with pytest.raises(InputError, match=r"written by normlab 9\.0 in the format 9"):
        read_sweep(tmp_path)


def test_it_grows_and_does_not_shrink(tmp_path):
    sweep = sweep_of(tmp_path)
    sweep.settle(CompareRequest(schemes=("pre_norm",), seeds=2))
    sweep.settle(CompareRequest(schemes=("keel", "pre-norm"), seeds=3))
    assert read_request(tmp_path, CompareRequest).schemes == ("keel", "pre_norm")
    with pytest.raises(ConfigError, match=r"seeds was 3, now 1.*\(schemes, depths and seeds may be added to\)"):
        sweep.settle(CompareRequest(schemes=("keel", "pre_norm"), seeds=1))


@pytest.mark.parametrize("text", ["null", "[]", "{", "\x00", '{"kind": "compare"}', '{"format": 1}'])
def test_a_damaged_sweep_is_one_sentence(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(InputError, match=r"sweep\.json' is damaged"):
        read_sweep(tmp_path)


def test_runs_are_read_and_failures_said(tmp_path):
    sweep = sweep_of(tmp_path)
    sweep.settle(CompareRequest())
    assert [run.name for run in sweep.run({"b": tiny(seed=1), "a": tiny()}, what="test")] == ["b", "a"]
    assert [run.name for run in read_runs(tmp_path)] == ["a", "b"]
    assert unfinished(tmp_path, least=2) == []
    assert "2 of 3 or more runs" in unfinished(tmp_path, least=3)[0]
    broken = prepare(tmp_path / "c", tiny(seed=2))
    (broken / "failure.json").write_text('{"error": "the disk is full"}')
    assert failure(broken) == "the disk is full"
    assert "1 failed, 'c' because the disk is full" in unfinished(tmp_path, least=2)[0]
    assert len(read_all([tmp_path, tmp_path])) == 2  # a run that is in two of them counts once


def test_what_is_stuck_is_known(tmp_path):
    sweep = sweep_of(tmp_path)
    wanted = {"a": tiny()}
    assert not sweep.stuck(wanted)
    sweep.failures["a"] = "no"
    assert sweep.stuck(wanted)
    assert not sweep.stuck({**wanted, "b": tiny(seed=1)})


def test_folders_of_the_first_format_open(tmp_path):
    """A run's config.yaml as the first format wrote it: `measure`, or `test_lengths`."""
    run = alone(prepare(tmp_path / "a", tiny()))
    path = tmp_path / "a" / "config.yaml"
    values = yaml.safe_load(path.read_text())
    score = values.pop("score")
    old = {**values, "format": 1, "measure": {k: v for k, v in score.items() if k != "kind"}}
    path.write_text(yaml.safe_dump(old))
    assert load(tmp_path / "a") == run.config
    assert alone(tmp_path / "a").summary == run.summary
    bylength = {**values, "test_lengths": [2, 4], "test_count": 8, "test_task": None}
    bylength["model"]["vocab_size"] = run.config.task.vocab_size
    del bylength["format"]
    path.write_text(yaml.safe_dump(bylength))
    assert load(tmp_path / "a").score.lengths == (2, 4)


def test_what_is_no_sweep_says_what_it_is(tmp_path):
    with pytest.raises(InputError, match=r"it has no sweep\.json"):
        read_sweep(tmp_path)
    alone(prepare(tmp_path / "a", tiny()))
    with pytest.raises(InputError, match="is one run, not a sweep \\(it is finished\\)"):
        read_sweep(tmp_path / "a")


def test_a_length_experiment_of_before_has_a_kind(tmp_path):
    stored = Path(__file__).parents[2] / "docs/results/lengthgen/dyck.json"
    shutil.copy(stored, tmp_path / "lengthgen.json")
    assert read_sweep(tmp_path).kind == "lengthgen"
