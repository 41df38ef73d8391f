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
