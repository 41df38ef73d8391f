import pytest
import torch

from normlab.errors import InputError, UnsupportedError
from normlab.tasks import task


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestText:
    def test_shipped_sample(self):
        text = task("text")
        assert len(text.stream) > 4_000_000
        assert text.stream.max() < 128  # ASCII
        batch = text.sample(4, 32, rng())
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        assert len(text.held_out().stream) == pytest.approx(len(text.stream) / 9, rel=1e-3)
        with pytest.raises(UnsupportedError, match="no known next-token law"):
            text.law(batch.tokens)

    def test_windows_are_windows_of_the_file(self, tmp_path):
        path = tmp_path / "t.txt"
        path.write_text("The café is open. " * 40, encoding="utf-8")
        text = task("text", path=str(path))
        raw = path.read_bytes()
        for row in text.sample(20, 16, rng()).tokens.tolist():
            assert bytes(row) in raw

    def test_byte_pairs_round_trip_and_shorten(self, tmp_path):
        path = tmp_path / "t.txt"
        path.write_text("the cat sat on the mat, né? " * 200, encoding="utf-8")
        pairs = task("text", path=str(path), tokens="bpe", bpe_size=300)
        assert pairs.stream.max() < 300
        assert pairs.decode(pairs.stream) == path.read_text(encoding="utf-8")[: len(pairs.decode(pairs.stream))]
        assert len(pairs.stream) < 0.5 * len(task("text", path=str(path)).stream)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "is empty"),
            (b"  \n", "is empty"),
            (b"\x89PNG\0\0", "NUL bytes"),
            (b"caf\xe9 au lait", "not UTF-8 text .byte 3"),
        ],
    )
    def test_not_text(self, tmp_path, content, says):
        path = tmp_path / "bad"
        path.write_bytes(content)
        with pytest.raises(InputError, match=says):
            task("text", path=str(path)).sample(1, 2, rng())

    def test_missing_and_too_short(self, tmp_path):
        with pytest.raises(InputError, match="cannot read the text file"):
            task("text", path=str(tmp_path / "none")).sample(1, 2, rng())
        path = tmp_path / "short.txt"
        path.write_text("a few words")
        with pytest.raises(InputError, match="too few for windows of 64"):
            task("text", path=str(path)).sample(1, 64, rng())
