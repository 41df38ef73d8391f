"""What the driver makes of Ray's answers, without Ray. test_ray.py has a real cluster."""

import json
import time
from types import SimpleNamespace

import pytest

from normlab.experiments.executors import ray as module
from normlab.experiments.executors.protocol import Answer, Outcome
from normlab.experiments.executors.ray import RayExecutor
from normlab.experiments.runs.folder import prepare
from normlab.experiments.runs.stack import is_finished
from normlab.experiments.runs.trainer import run_folder
from tests.experiments.tiny import tiny

NO_NORMLAB = """ray::remote_attempt() (pid=7, ip=10.0.0.2)
RuntimeError: The remote function failed to import on the worker. Traceback (most recent call last):
  File "worker.py", line 1, in <module>
ModuleNotFoundError: No module named 'normlab'
"""


class RayError(Exception):
    pass


class FakeRay:
    """One node of so many cores that answers at once, or never."""

    exceptions = SimpleNamespace(RayError=RayError, RuntimeEnvSetupError=RayError)

    def __init__(self, answer=None, cores=1.0):
        self.answer, self.cores, self.waits = answer, cores, 0

    def init(self, **_):
        pass

    def shutdown(self):
        pass

    def cluster_resources(self):
        return {"CPU": self.cores}

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": self.cores}}, {"Alive": False, "Resources": {"CPU": 64.0}}]

    def remote(self, _):
        task = SimpleNamespace(remote=lambda folder, *_: folder)
        return SimpleNamespace(options=lambda **_: task)

    def wait(self, references, **_):
        self.waits += 1
        return (references[:1], references[1:]) if self.answer is not None or self.waits > 3 else ([], references)

    def get(self, _):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or Answer("at last")


@pytest.fixture
def executor(monkeypatch):
    def with_answer(answer=None, **options):
        fake = FakeRay(answer, options.pop("cores", 1.0))
        monkeypatch.setattr(module, "require", lambda *_, **__: fake)
        monkeypatch.setattr(module, "LATE", 0.1)
        return RayExecutor(**options)

    return with_answer


def test_a_node_with_a_folder_of_its_own_is_a_failure(executor, tmp_path):
    folder = prepare(tmp_path / "run", tiny())
    (outcome,) = executor(Answer()).run([folder])
    assert f"{str(folder)!r} has no summary here: the node has a folder of its own" in outcome.error
    run_folder(folder)
    assert list(executor(Answer()).run([folder])) == [Outcome(folder)]


def test_a_stack_is_finished_when_its_members_are(tmp_path):
    names = ["a", "b"]
    for name in names:
        prepare(tmp_path / name, tiny())
    stack = tmp_path / "a" / "stacked"
    stack.mkdir()
    (stack / "stacked.json").write_text(json.dumps(names))
    run_folder(tmp_path / "a")
    assert not is_finished(stack)
    run_folder(tmp_path / "b")
    assert is_finished(stack)


def test_a_ray_error_is_its_cause(executor, tmp_path):
    (outcome,) = executor(RayError(NO_NORMLAB)).run([tmp_path])
    assert outcome.error == "on the Ray cluster: ModuleNotFoundError: No module named 'normlab'"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cores": 0.0}, "a run waits for 1 CPU, the cluster has 0\n"),
        ({"cores": 1.0, "threads": 2}, "a run waits for 2 CPU, the cluster has 1 on its largest node\n"),
        ({"cores": 4.0, "device": "cuda"}, "a run waits for 1 GPU, the cluster has 0\n"),
        ({"cores": 4.0}, ""),
    ],
)
def test_a_run_without_room_says_what_it_waits_for_once(options, sentence, executor, tmp_path, capsys):
    (outcome,) = executor(**options).run([tmp_path])
    assert outcome.error == "at last"
    assert capsys.readouterr().err == sentence


def test_room_that_others_have_taken(executor, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "BUSY", -1.0)
    list(executor(cores=4.0).run([tmp_path]))
    assert capsys.readouterr().err == "all runs wait: the cluster has room for them, and others have taken it\n"
    folder = prepare(tmp_path / "run", tiny())
    module.Heartbeat(folder).beat()
    cell = module._Cell(folder, given=time.time())
    executor(cores=0.0)._say_what_is_missing([cell])
    assert capsys.readouterr().err == "", "it has begun"
