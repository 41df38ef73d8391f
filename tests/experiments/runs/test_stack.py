import json

import pytest

from normlab.errors import InputError
from normlab.experiments.runs.score import ByLength
from normlab.experiments.runs.stack import Job, plan, prepare_job, stacks
from tests.experiments.tiny import tiny


def by_length(**changes):
    return tiny(**changes).replace(score=ByLength(lengths=(8,), count=2))


def test_runs_that_look_into_layers_run_apart(tmp_path):
    assert plan({"a": tiny(), "b": tiny(seed=1)}, tmp_path) == [Job(("a",), "separate"), Job(("b",), "separate")]


def test_only_seed_and_rate_may_differ_within_a_stack(tmp_path):
    wanted = {
        "a": by_length(seed=0), "b": by_length(seed=1, lr=0.1), "c": by_length(seed=2), "d": by_length(scheme="keel"),
    }  # fmt: skip
    jobs = plan(wanted, tmp_path)
    assert sorted(name for job in jobs for name in job.names) == ["a", "b", "c", "d"]
    for job in jobs:
        assert job.how == "stacked" or len(job.names) == 1
        assert len({wanted[name].model.scheme.name for name in job.names}) == 1
        assert job.why


def test_a_stack_that_was_begun_goes_on_as_it_was(tmp_path):
    wanted = {"a": by_length(), "b": by_length(seed=1)}
    folder = prepare_job(Job(("a", "b"), "stacked"), wanted, tmp_path)
    assert folder == tmp_path / "a" / "stacked"
    assert stacks(tmp_path) == [("a", "b")]
    more = {**wanted, "c": tiny(seed=2)}
    assert plan(more, tmp_path) == [Job(("a", "b"), "stacked", "they were begun so"), Job(("c",), "separate")]


@pytest.mark.parametrize("content", ["{", "[]", '["../outside"]', "[3]"])
def test_a_damaged_list_of_members_is_one_sentence(tmp_path, content):
    folder = prepare_job(Job(("a",), "stacked"), {"a": by_length()}, tmp_path)
    (path,) = [file for file in folder.iterdir() if file.suffix == ".json"]
    assert json.loads(path.read_text()) == ["a"]
    path.write_text(content)
    with pytest.raises(InputError, match=r"is damaged.*delete the folder"):
        stacks(tmp_path)
