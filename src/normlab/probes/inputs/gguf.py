"""What a GGUF file says about the tokens around a text. Readers of other libraries drop it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from normlab.errors import require
from normlab.files import write_json

_PLACE = "framing.json"
_STARTS = ("llama", "llama3", "llama-v3", "llama-bpe")  # kinds that begin with a BOS where the file does not say it


def first_token(path: Path, cached: Path) -> int | None:
    """The id that a text begins with, or None; kept beside the weights in the cache, so that it is read once."""
    place = cached / _PLACE
    if not place.is_file():
        if find_spec("gguf") is None:  # weights that were cached before this was kept can be read without it
            return None
        write_json(place, {"bos": _read(path)})
    value = json.loads(place.read_text(encoding="utf-8")).get("bos")
    return value if isinstance(value, int) else None


def _read(path: Path) -> int | None:
    reader = require("gguf", extra="gguf", purpose="reading a GGUF file").GGUFReader(path)

    def field(name: str) -> Any:
        found = reader.fields.get(f"tokenizer.ggml.{name}")
        return None if found is None else found.contents()

    begins = field("add_bos_token")
    if begins is None:
        begins = field("model") in _STARTS or field("pre") in _STARTS
    bos = field("bos_token_id")
    return int(bos) if begins and bos is not None else None
