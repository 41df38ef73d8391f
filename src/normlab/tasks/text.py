"""Plain text, as bytes or as a small byte-pair encoding. No law is known here: runs on text are scored by loss."""

from __future__ import annotations

import hashlib
import lzma
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from normlab import files
from normlab.errors import InputError, require
from normlab.files import LIMITS
from normlab.tasks.base import Batch, Task

SAMPLE = Path(__file__).parent / "data" / "plays.txt.xz"


class Text(Task):
    """Windows of a text file (UTF-8); without `path`, the plays that ship with the package (data/ORIGIN.md).

    The last tenth is held out: `held_out()` samples only from it, training only from the rest.
    """

    exact: ClassVar[bool] = False
    window: ClassVar[int] = 16

    task: Literal["text"] = "text"
    path: str | None = None
    tokens: Literal["bytes", "bpe"] = "bytes"
    bpe_size: int = Field(default=1024, ge=257)
    split: Literal["train", "test"] = "train"

    @property
    def vocab_size(self) -> int:
        return 256 if self.tokens == "bytes" else self.bpe_size

    def held_out(self) -> Text:
        return self.replace(split="test")

    @cached_property
    def stream(self) -> Tensor:
        """The tokens of this split, one after the other."""
        train, test = _splits(self.path, self.tokens, self.bpe_size)
        return train if self.split == "train" else test

    def files(self) -> dict[str, str]:
        return {} if self.path is None else {self.path: _digest(self.path)}

    @property
    def longest(self) -> int | None:
        return len(self.stream) - 1

    def too_long(self, length: int) -> str:
        return (
            f"{_label(self.path)} has {len(self.stream)} tokens in its {self.split} part, too few for windows of "
            f"{length} tokens and one to predict; take a longer text or shorter windows"
        )

    def inputs(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        return self.sample(count, length, generator).tokens

    def sample(self, count: int, length: int, generator: torch.Generator, *, law: bool = False) -> Batch:
        self.check(count, length)
        if law:
            self.law(torch.empty(0))
        start = torch.randint(len(self.stream) - length, (count, 1), generator=generator)
        windows = self.stream[start + torch.arange(length + 1)]
        return Batch(windows[:, :-1], windows[:, 1:])

    def encode(self, text: str) -> Tensor:
        return _encode(text, self.path, self.tokens, self.bpe_size)

    def decode(self, tokens: Tensor) -> str:
        if self.tokens == "bytes":
            return bytes(tokens.tolist()).decode("utf-8", errors="replace")
        return str(_tokenizer(self.path, self.bpe_size).decode(tokens.tolist()))


def _label(path: str | None) -> str:
    return "the text that ships with normlab" if path is None else f"the file {path!r}"


@lru_cache(maxsize=4)
def read_text(path: str | None) -> str:
    """The text, or a sentence on why it is none."""
    if path is None:
        return lzma.decompress(SAMPLE.read_bytes()).decode("utf-8")
    what = "the text file"
    text = files.read_text(path, what=what, most=LIMITS.text_bytes)
    if not text.strip():
        raise InputError(f"{what} {path!r} is empty; training needs at least a few thousand characters")
    if "\0" in text:
        raise InputError(f"{path!r} is not text: it contains NUL bytes; give a plain UTF-8 file")
    return text


def _digest(path: str) -> str:
    """Of the text in memory, not of the file as it is now: windows are cut from the former."""
    return hashlib.sha256(read_text(path).encode("utf-8")).hexdigest()[:16]


def _split(text: str) -> tuple[str, str]:
    cut = len(text) - max(len(text) // 10, 1)
    return text[:cut], text[cut:]


@lru_cache(maxsize=4)
def _splits(path: str | None, tokens: str, size: int) -> tuple[Tensor, Tensor]:
    train, test = _split(read_text(path))
    return _encode(train, path, tokens, size), _encode(test, path, tokens, size)


def _encode(text: str, path: str | None, tokens: str, size: int) -> Tensor:
    if tokens == "bytes":
        return torch.from_numpy(np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int64))
    return torch.tensor(_tokenizer(path, size).encode(text).ids)


@lru_cache(maxsize=4)
def _tokenizer(path: str | None, size: int):  # type: ignore[no-untyped-def]
    """Byte-level BPE, trained on the training part only."""
    tokenizers = require("tokenizers", extra="hf", purpose="byte-pair encoding")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_split(read_text(path))[0].splitlines(keepends=True), trainer)
    return tokenizer
