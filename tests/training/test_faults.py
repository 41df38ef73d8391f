"""A run that is killed, damaged or led astray: nothing is lost, nothing is made up, nothing outside is touched."""

import json
import shutil

import pytest
import torch

from normlab.errors import DamagedError, InputError
from normlab.schemes import depth_kernels
from normlab.store import seal
from normlab.training.record import Log, LogMark, read_log
from tests.training.test_loop import losses, make


class Killed(BaseException):
    """Stands for the end of the process: nothing behind it runs."""


def kill(*_):
    raise Killed


def diverging(folder, *, at):
    """A run whose loss is no number at step `at`, killed before it can write its summary."""
    trainer = make(folder, steps=20)
    plain = trainer.loss
    trainer.loss = lambda model, batch: plain(model, batch) * (float("nan") if trainer.step == at else 1.0)
    trainer._write = kill
    with pytest.raises(Killed):
        trainer.run()


def forget_status(folder):
    """As an earlier version wrote it: no status, and the length of the log alone."""
    for path in (folder / "checkpoint").glob("step-*/state.json"):
        body = json.loads(path.read_text())
        del body["state"]["status"], body["checksum"]
        body["state"]["log"] = body["state"]["log"]["size"]
        path.write_text(json.dumps(seal(body)))


@pytest.mark.parametrize("version", ["now", "earlier"])
def test_a_diverged_run_stays_diverged(tmp_path, version):
    """A checkpoint is saved on the very step that diverges: 7, with one every 7."""
    diverging(tmp_path, at=7)
    assert not (tmp_path / "summary.json").exists()
    if version == "earlier":
        forget_status(tmp_path)
    summary = make(tmp_path, steps=20).run()
    assert (summary["status"], summary["step"], summary["loss"]) == ("diverged", 7, None)
    assert len(losses(tmp_path)) == 7
    assert read_log(tmp_path / "log.jsonl", "end") == [{"kind": "end", "step": 7, "status": "diverged"}]


def high_from_10(folder):
    """A run whose loss is far above chance from step 10 on, with a patience of 5: it diverges at 14."""
    trainer = make(folder, steps=20, patience=5)
    plain = trainer.loss
    trainer.loss = lambda model, batch: plain(model, batch) * (1e3 if trainer.step >= 10 else 1)
    return trainer


@pytest.mark.parametrize("kept", ["step-000000007", "step-000000014"])
def test_patience_is_kept_over_a_kill(tmp_path, kept):
    trainer = high_from_10(tmp_path)
    trainer._write = kill
    with pytest.raises(Killed):
        trainer.run()
    for path in (tmp_path / "checkpoint").iterdir():
        if path.name != kept:
            shutil.rmtree(path)
    summary = high_from_10(tmp_path).run()
    assert (summary["status"], summary["step"]) == ("diverged", 14)


def interrupted(folder, *, steps=20):
    """Killed at the end: two checkpoints, a log, no summary."""
    trainer = make(folder, steps=steps)
    trainer._write = kill
    with pytest.raises(Killed):
        trainer.run()
    return folder


def test_a_shortened_log_is_not_passed_over(tmp_path):
    """Of the two checkpoints that are there, the earlier one still knows what the log holds."""
    make(tmp_path / "whole", steps=20).run()
    folder = interrupted(tmp_path / "cut")
    log = folder / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:16]))
    with pytest.warns(UserWarning, match="bytes, and had"):
        make(folder, steps=20).run()
    assert losses(folder) == losses(tmp_path / "whole")
    assert len(losses(folder)) == 20


def test_a_folder_in_the_place_of_a_log_is_one_sentence(tmp_path):
    """Found by the campaign: a folder is larger than a short log, and was opened."""
    (tmp_path / "log.jsonl").mkdir()
    for mark in (LogMark(size=1, sha256="0" * 64), LogMark(size=10**6, sha256=None)):
        with pytest.raises(DamagedError, match="a folder stands in its place"):
            Log(tmp_path / "log.jsonl").check(mark)


def test_a_log_that_no_checkpoint_knows_is_refused(tmp_path):
    folder = interrupted(tmp_path)
    log = folder / "log.jsonl"
    raw = bytearray(log.read_bytes())
    raw[30] ^= 1
    log.write_bytes(raw)
    with pytest.warns(UserWarning, match="not those that were there"), pytest.raises(DamagedError, match="delete"):
        make(folder, steps=20).run()
    assert log.read_bytes() == raw


def test_a_checkpoint_of_another_run_is_not_taken(tmp_path):
    """Intact, but its log is another one; and it does not evict those of this run."""
    other = interrupted(tmp_path / "other", steps=30)
    folder = interrupted(tmp_path / "mine")
    shutil.copytree(other / "checkpoint/step-000000030", folder / "checkpoint/step-000000030")
    (folder / "checkpoint/step-extra").mkdir()
    (folder / "checkpoint/step-999999999").mkdir()
    with pytest.warns(UserWarning, match="step-000000030 is damaged|step-999999999 is damaged"):
        summary = make(folder, steps=20).run()
    assert (summary["status"], summary["step"]) == ("finished", 20)
    assert {"step-000000014", "step-000000020"} <= {p.name for p in (folder / "checkpoint").iterdir()}


def rewrite(folder, change):
    """Change a state.json and make its checksum right again."""
    for path in (folder / "checkpoint").glob("step-*/state.json"):
        body = json.loads(path.read_text())
        del body["checksum"]
        change(body)
        path.write_text(json.dumps(seal(body)))


STATES = {
    "null": lambda path: path.write_text("null"),
    "list": lambda path: path.write_text("[]"),
    "binary": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "empty": lambda path: path.write_text(""),
    "deep": lambda path: path.write_text("[" * 100_000),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "gone": lambda path: path.unlink(),
}
BODIES = {
    "no state": lambda body: body.pop("state"),
    "state is a list": lambda body: body.update(state=[]),
    "step is a text": lambda body: body.update(step="7"),
    "another step": lambda body: body.update(step=9),
    "other keys": lambda body: body["state"].pop("high"),
    "unknown keys": lambda body: body["state"].update(more=1),
    "a log of a negative size": lambda body: body["state"].update(log=-1),
    "a last record of texts": lambda body: body["state"].update(last={"loss": "low"}),
}


@pytest.mark.parametrize("name", [*STATES, *BODIES])
def test_a_damaged_state_is_one_sentence(tmp_path, name):
    folder = interrupted(tmp_path)
    if name in BODIES:
        rewrite(folder, BODIES[name])
    else:
        for path in list((folder / "checkpoint").glob("step-*/state.json")):
            STATES[name](path)
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(DamagedError, match="delete that folder"):
        make(folder, steps=20).run()


def test_a_checkpoint_of_another_shape_is_one_sentence(tmp_path):
    folder = interrupted(tmp_path)
    with pytest.warns(UserWarning, match="it is of another run"), pytest.raises(DamagedError, match="no checkpoint"):
        make(folder, steps=20, scheme="peri_norm").run()


@pytest.mark.parametrize("name", ["log.jsonl", "checkpoint"])
def test_links_out_of_the_folder_are_not_written_through(tmp_path, name):
    outside = tmp_path / "outside"
    (tmp_path / "run").mkdir()
    if name == "checkpoint":
        outside.mkdir()
    else:
        outside.write_text("precious\n")
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises(InputError, match="is a link"):
        make(tmp_path / "run", steps=20).run()
    assert list(outside.iterdir()) == [] if name == "checkpoint" else outside.read_text() == "precious\n"


def stopped_at_14(folder):
    folder = interrupted(folder)
    shutil.rmtree(folder / "checkpoint" / "step-000000020")
    return folder


def test_a_resume_under_other_conditions_says_so(tmp_path, monkeypatch):
    make(tmp_path / "whole", steps=20).run()
    same = stopped_at_14(tmp_path / "same")
    make(same, steps=20).run()  # a warning would be an error
    assert losses(same) == losses(tmp_path / "whole")
    other = stopped_at_14(tmp_path / "other")
    now = "off" if depth_kernels.available() else "on"
    monkeypatch.setattr(depth_kernels, "available", lambda: now == "on")
    with pytest.warns(
        UserWarning, match=rf"goes on from step 14 .*kernels \w+ before, {now} now.*no longer bit for bit"
    ):
        summary = make(other, steps=20).run()
    assert summary["conditions"]["kernels"] == now


LINES = {
    "no record": b"null\n",
    "a number": b"3\n",
    "binary": b"\xff\xfe\n",
    "half": b'{"kind": \n',
    "deep": b"[" * 10**5 + b"\n",
}


@pytest.mark.parametrize("name", LINES)
def test_a_damaged_line_names_its_number_and_only_the_last_may_be_unfinished(tmp_path, name):
    path = tmp_path / "log.jsonl"
    good = b'{"kind": "train", "step": 1}\n'
    path.write_bytes(good + LINES[name] + good)
    with pytest.raises(DamagedError, match="line 2 is not a record"):
        read_log(path)
    path.write_bytes(good + b'{"kind": "tra')
    assert read_log(path) == [{"kind": "train", "step": 1}]


def test_a_log_of_100_000_lines_is_checked_as_a_whole(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    log.open()
    for step in range(100_000):
        log.write({"kind": "train", "step": step, "loss": 1.5})
    mark = log.sync()
    log.close()
    again = Log(tmp_path / "log.jsonl")
    again.check(mark)
    again.cut(mark.size)
    again.open()
    assert again.sync() == mark
    again.close()
    assert len(read_log(tmp_path / "log.jsonl")) == 100_000


def test_a_stack_whose_members_all_diverged_makes_no_further_step(tmp_path):
    from normlab.training.ensemble import Ensemble

    members = [make(tmp_path, steps=20, seed=seed) for seed in range(2)]

    def build():
        models = [make(tmp_path, steps=20, seed=seed).model for seed in range(2)]
        return Ensemble(models, members[0].task, [m.config for m in members], tmp_path, quiet=True)

    stack = build()
    plain = stack.gradients
    stack.gradients = lambda batch: tuple(t * (float("nan") if stack.step == 7 else 1) for t in plain(batch))
    stack._finish = kill
    with pytest.raises(Killed):
        stack.run()
    assert not stack.alive.any()
    again = build()
    summaries = again.run()
    assert again.step == 7
    assert [(s["status"], s["step"]) for s in summaries] == [("diverged", 7)] * 2
    assert all(torch.isfinite(again.flat).all(dim=1))


def test_a_stack_of_an_earlier_version_goes_on():
    """It wrote the lengths of its logs alone, and a section for the one value of its feed."""
    from normlab.training.ensemble import StackState

    last = [{"step": 3, "loss": None}]
    found = StackState.from_dict({"feed": {"used": 3}, "logs": [10], "last": last})
    assert found == StackState.from_dict({"used": 3, "logs": [{"size": 10}], "last": last})
    assert StackState.from_dict(found.to_dict()) == found
