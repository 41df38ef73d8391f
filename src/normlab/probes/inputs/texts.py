"""Text and token ids, cut into windows that fit a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normlab import files
from normlab.errors import InputError
from normlab.files import LIMITS
from normlab.probes.inputs.hub import Loaded, quiet

MOST_UNKNOWN = 0.3  # of the tokens: a model that reads [UNK] [UNK] [UNK] is not being measured on text
SAMPLE = Path(__file__).parent / "data" / "sample.txt"


def read_text(path: str | Path | None) -> str:
    """A text file, or the sample that ships with the package (The Devil's Dictionary, 1911, public domain).

    Of a long file the beginning (`InputLimits.sample_bytes`): windows are cut from there.
    """
    place = SAMPLE if path is None else Path(path)
    text = files.read_text(place, what="the text", most=LIMITS.sample_bytes, cut=True)
    if not text.strip():
        raise InputError(f"the text {str(place)!r} is empty")
    return text


def read_tokens(path: str | Path) -> Tensor:
    """Token ids from a JSON list, or from text with whitespace or commas between the numbers."""
    text = files.read_text(path, what="the token ids", most=LIMITS.sample_bytes)
    try:
        values = json.loads(text) if text.lstrip().startswith("[") else [int(v) for v in text.replace(",", " ").split()]
        ids = torch.tensor(values, dtype=torch.long).flatten()
    except (ValueError, TypeError, OverflowError, RuntimeError, RecursionError) as error:
        said = str(error).strip().splitlines()
        raise InputError(f"cannot read token ids from {str(path)!r}: {said[0] if said else 'not numbers'}") from None
    if not len(ids):
        raise InputError(f"{str(path)!r} holds no token ids")
    return ids


def tokenize(loaded: Loaded, text: str) -> Tensor:
    """All tokens of a text, without special tokens: windows are cut from it."""
    if loaded.tokenizer is None:
        raise InputError(f"{loaded.name} comes without a tokenizer; pass token ids with --tokens FILE")
    with quiet():
        ids = loaded.tokenizer(text, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    if not ids:
        raise InputError(f"the tokenizer of {loaded.name} makes no tokens of this text")
    unknown = ids.count(getattr(loaded.tokenizer, "unk_token_id", None)) / len(ids)
    if unknown > MOST_UNKNOWN:
        raise InputError(
            f"the tokenizer of {loaded.name} knows only {100 * (1 - unknown):.0f} % of the pieces of this text, so text "
            "and model do not belong together; pass a text of its kind with --text, or token ids with --tokens"
        )
    return torch.tensor(ids, dtype=torch.long)


def frame(loaded: Loaded) -> tuple[list[int], list[int]]:
    """The special tokens that this model's tokenizer puts before and after a text ([CLS] and [SEP], a BOS, or none)."""
    if loaded.tokenizer is None:
        return [], []
    plain = loaded.tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = loaded.tokenizer("a", add_special_tokens=True)["input_ids"]
    before: list[int] = []
    after: list[int] = []
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            before, after = whole[:start], whole[start + len(plain) :]
            break
    if loaded.bos is not None and loaded.bos not in before:
        before = [loaded.bos, *before]
    return before, after


def windows(
    ids: Tensor,
    *,
    length: int,
    count: int,
    model: nn.Module,
    name: str = "the model",
    framing: tuple[list[int], list[int]] = ([], []),
) -> Tensor:
    """The first `count` windows of `length` tokens, special tokens included, [count, length]; fewer if it is short."""
    vocabulary = vocabulary_size(model)
    if vocabulary and int(ids.max()) >= vocabulary:
        raise InputError(
            f"token id {int(ids.max())} is outside the vocabulary of {name} ({vocabulary} tokens): the tokenizer does "
            "not belong to this model"
        )
    limit = position_limit(model)
    if limit and length > limit:
        raise InputError(f"windows of {length} tokens are longer than {name} can read ({limit}); pass --window {limit}")
    inside = length - len(framing[0]) - len(framing[1])
    if len(ids) < inside or inside < 2:
        raise InputError(
            f"the text has {len(ids)} tokens, which is less than one window of {length}; pass a longer text, "
            f"or --window {max(4, 1 << (len(ids).bit_length() - 1))}"
        )
    count = min(count, len(ids) // inside)
    rows = ids[: count * inside].reshape(count, inside)
    before, after = (torch.tensor(part, dtype=torch.long).expand(count, -1) for part in framing)
    return torch.cat([before, rows, after], 1)


def vocabulary_size(model: nn.Module) -> int | None:
    find: Any = getattr(model, "get_input_embeddings", None)
    if find is not None:
        table = find()
        if isinstance(table, nn.Embedding):
            return table.num_embeddings
    return getattr(getattr(model, "config", None), "vocab_size", None)


def position_limit(model: nn.Module) -> int | None:
    """How many tokens the model can read, where its config says so."""
    config = getattr(model, "config", None)
    for key in ("max_position_embeddings", "n_positions", "max_length"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0 and not (key == "max_length" and value < 32):
            # RoBERTa counts positions from its padding index: two of them are never used.
            return value - 2 if type(model).__name__.startswith(("Roberta", "XLMRoberta", "Camembert")) else value
    return None
