import os
import signal
import sys
import warnings

import pytest
import torch

from normlab.errors import InputError
from normlab.training import checkpoint


class TestCheckpoint:
    def save(self, folder, step, value=1.0):
        return checkpoint.save(folder, step, {"a": {"x": torch.full((3,), value)}}, {"note": step})

    def test_round_trip_and_two_kept(self, tmp_path):
        for step in (10, 20, 30):
            self.save(tmp_path, step, float(step))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000020", "step-000000030"]
        found = checkpoint.latest(tmp_path)
        assert (found.step, found.state) == (30, {"note": 30})
        assert torch.equal(found.group("a")["x"], torch.full((3,), 30.0))

    def test_nothing_there(self, tmp_path):
        assert checkpoint.latest(tmp_path / "none") is None

    @pytest.mark.parametrize("victim", ["tensors.safetensors", "state.json"])
    @pytest.mark.parametrize("how", ["flip", "cut", "gone"])
    def test_damage_falls_back_to_the_one_before(self, tmp_path, victim, how):
        self.save(tmp_path, 10)
        path = self.save(tmp_path, 20) / victim
        raw = bytearray(path.read_bytes())
        if how == "gone":
            path.unlink()
        else:
            raw[-20] ^= 1
            path.write_bytes(raw if how == "flip" else raw[: len(raw) // 2])
        with pytest.warns(UserWarning, match="step-000000020 is damaged"):
            assert checkpoint.latest(tmp_path).step == 10

    def test_all_damaged_is_one_sentence(self, tmp_path):
        (self.save(tmp_path, 10) / "state.json").write_text("{}")
        with pytest.warns(UserWarning, match="damaged"), pytest.raises(InputError, match="delete that folder"):
            checkpoint.latest(tmp_path)

    def test_a_half_written_checkpoint_is_never_seen(self, tmp_path):
        self.save(tmp_path, 10)
        (tmp_path / ".step-000000020.tmp").mkdir()
        (tmp_path / ".step-000000020.tmp" / "state.json").write_text("half")
        assert checkpoint.latest(tmp_path).step == 10
        self.save(tmp_path, 30)
        assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_only_checkpoint_survives_a_kill_while_it_is_written_again(tmp_path):
    """A run that pauses saves the step that it has saved already: killed at any of its file operations, it can go on."""
    ends = []
    for moment in range(1, 60):
        folder = tmp_path / str(moment) / "checkpoint"
        checkpoint.save(folder, 3, {"model": {"w": torch.ones(2)}}, {"n": 1})
        child = os.fork()
        if child == 0:
            left = moment

            def strike(event, arguments):
                nonlocal left
                if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(strike)
            checkpoint.save(folder, 3, {"model": {"w": torch.ones(2)}}, {"n": 2})
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = checkpoint.latest(folder)
        assert found is not None, moment
        assert (found.step, found.state["n"]) in ((3, 1), (3, 2)), moment
        checkpoint.save(folder, 6, {"model": {"w": torch.zeros(2)}}, {"n": 3})
        assert sorted(path.name for path in folder.iterdir()) == ["step-000000003", "step-000000006"], moment
        if ends[-1] == 0:
            break
    assert ends[-1] == 0
    assert ends.count(-signal.SIGKILL) >= 8
