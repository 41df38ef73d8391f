"""The first token of a text, as a GGUF file says it."""

import pytest

from normlab.probes.inputs.gguf import first_token
from normlab.probes.inputs.hub import Loaded
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
