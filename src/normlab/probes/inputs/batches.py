"""Which part of the batches each stage of a diagnosis looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from normlab.errors import InputError
from normlab.probes.inputs.losses import (
    HiddenAnew,
    Loss,
    call,
    images,
    narrow,
    padding,
    token_ids,
    with_ids,
    with_images,
)
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.inputs.texts import position_limit

WINDOW = 128  # tokens: so much of a row shows most of what a change does
DRAWS = 4  # how often a window is asked for, where a few hidden tokens count


def as_batches(given: object, model: nn.Module) -> list[object]:
    """A list of batches of whatever was given: one tensor, one mapping (a `BatchEncoding` too), or many of either."""
    if isinstance(given, (Tensor, Mapping)):
        given = [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InputError(
            f"batches are {type(given).__name__}; a tensor of token ids [batch, tokens], a dict of the model's arguments, "
            "or a list of these was expected. Texts are turned into token ids by the model's tokenizer"
        )
    found = [_decoder_too(dict(batch), model) if isinstance(batch, Mapping) else batch for batch in given]
    found = [_usable(batch) for batch in found]
    if not found:
        raise InputError("no batches were given: pass a list with at least one batch, for example [token_ids]")
    for batch in found:
        if not isinstance(batch, (Tensor, dict, tuple, list)):
            raise InputError(
                f"a batch is {type(batch).__name__}; token ids [batch, tokens] as a tensor, a dict of the model's "
                "arguments or a tuple was expected"
            )
        _check_shape(batch)
    return found


def _usable(value: object) -> object:
    """Tensors that were made in `inference_mode` have no gradient, and some models ask for labels that lie in one piece."""
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value.contiguous()
    if isinstance(value, dict):
        return {key: _usable(item) for key, item in value.items()}
    if type(value) is tuple:
        return tuple(map(_usable, value))
    return list(map(_usable, value)) if type(value) is list else value


def _check_shape(batch: object) -> None:
    """A batch has rows: one text is a batch of one, and numbers in a list are not a tensor yet."""
    if isinstance(batch, dict):
        first = batch.get("input_ids")
    else:
        first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if first is not None and not isinstance(first, Tensor):
        raise InputError(
            f"token ids are given as {type(first).__name__}; a tensor [batch, tokens] was expected: torch.tensor(ids), or "
            'return_tensors="pt" where a tokenizer made them'
        )
    if isinstance(first, Tensor) and (first.dim() < 2 or 0 in first.shape):
        raise InputError(
            f"a batch has the shape {list(first.shape)}; [batch, tokens] with at least one of each was expected (one text "
            "alone: ids[None])"
        )
    ids = token_ids(batch)
    if ids is not None and ids.shape[1] < 2:
        raise InputError("a batch has one token a row: nothing can be attended to or predicted; pass longer texts")


def check_runs(model: nn.Module, batch: object) -> None:
    """Run the model once, so that what it cannot read is one sentence and not the traceback of another library."""
    try:
        with torch.no_grad():
            call(model, batch)
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
        halves = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        lacks = halves and isinstance(batch, dict) and not batch.keys() & {"labels", "decoder_input_ids"}
        advice = "; an encoder-decoder also needs labels= or decoder_input_ids= in its batch" if lacks else ""
        raise InputError(
            f"{type(model).__name__} does not run on the first batch ({_described(batch)}): {said}{advice}"
        ) from None


def _described(batch: object) -> str:
    if isinstance(batch, Mapping):
        return ", ".join(f"{key} {_described(value)}" for key, value in batch.items())
    if isinstance(batch, (tuple, list)):
        return ", ".join(_described(value) for value in batch)
    if isinstance(batch, Tensor):
        return f"{list(batch.shape)} of {str(batch.dtype).removeprefix('torch.')}"
    return type(batch).__name__


def _decoder_too(batch: dict[str, object], model: nn.Module) -> dict[str, object]:
    """An encoder-decoder reads what its decoder is given also where the labels are left out."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    twofold = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if twofold and callable(shift) and "labels" in batch and "decoder_input_ids" not in batch:
        return {**batch, "decoder_input_ids": shift(labels=batch["labels"])}
    return batch


def first_rows(batch: object, *, rows: int = 2, tokens: int = 64) -> object:
    """A small piece of a batch for the identity check: it is of the same kind, and every layer is still run."""
    pixels = images(batch)
    return narrow(batch, rows, tokens) if pixels is None else with_images(batch, pixels[:rows])


def texts(model: nn.Module, batches: list[object], options: DiagnoseOptions) -> list[Tensor]:
    """Token ids [1, n] ([2, n] up to 256) for each length n, cut from all batches laid end to end."""
    parts = [
        ids[text] if (text := padding(batch)) is not None else ids.flatten()
        for batch in batches
        if (ids := token_ids(batch)) is not None
    ]
    if not parts:
        return []
    ids = torch.cat(parts)
    limit = min(len(ids), options.longest, position_limit(model) or options.longest)
    wanted = options.lengths or [64 << k for k in range(20) if 64 << k <= limit]
    return [ids[: n * (2 if n <= 256 and len(ids) >= 2 * n else 1)].reshape(-1, n) for n in wanted if n <= limit]


def some(batches: list[object], tokens: int, loss: Loss) -> list[object]:
    """Whole windows, about so many tokens; a contrastive batch is not cut, because its windows are its negatives."""
    ids = token_ids(batches[0])
    if ids is None or (isinstance(batches[0], Mapping) and "labels" in batches[0]):
        return batches
    rows = max(1, tokens // ids.shape[1])
    if loss.name == "contrastive" or rows >= len(ids):
        return batches[: max(1, rows // len(ids))]
    return [narrow(batches[0], rows, ids.shape[1])]


def shortened(piece: object, tokens: int) -> object:
    """The first tokens of each row, where a piece is plain text: what comes later is not seen from there.

    With padding it stays whole: the first tokens may be nothing else.
    """
    ids = token_ids(piece)
    labelled = isinstance(piece, Mapping) and "labels" in piece
    if ids is None or labelled or ids.shape[1] <= tokens or padding(piece) is not None:
        return piece
    return narrow(piece, len(ids), tokens)


def pieces(batches: list[object], loss: Loss, *, count: int = 8) -> list[object]:
    """The same windows in at least `count` parts where they can be cut, so that parts can be compared.

    A contrastive batch is not cut: its windows are its negatives. Where one token in seven counts, each window is
    asked for several times, with other tokens hidden.
    """
    if loss.name == "contrastive":
        return batches
    each = -(-count // len(batches))
    found = [piece for batch in batches for piece in _rows_apart(batch, each)]
    return [HiddenAnew(piece, draw) for draw in range(DRAWS) for piece in found] if loss.name == "masked" else found


def _rows_apart(batch: object, count: int) -> list[object]:
    ids = token_ids(batch)
    if ids is None or len(ids) < 2:
        return [batch]
    step = max(1, len(ids) // count)
    starts = range(0, len(ids) - step + 1, step)

    def cut(value: object, start: int) -> object:
        own = isinstance(value, Tensor) and value.dim() > 0 and len(value) == len(ids)
        return value[start : start + step] if own else value  # type: ignore[index]

    if isinstance(batch, Mapping):
        return [{key: cut(value, start) for key, value in batch.items()} for start in starts]
    if isinstance(batch, (tuple, list)):
        return [tuple(cut(value, start) for value in batch) for start in starts]
    return [cut(batch, start) for start in starts]


def skip_batches(batches: list[object], loss: Loss, tokens: int) -> list[object]:
    """Four batches of so many tokens in all, or eight of four times as many where only masked tokens count.

    The contrastive loss needs whole batches of windows.
    """
    ids = token_ids(batches[0])
    if ids is None or loss.name == "contrastive" or (isinstance(batches[0], Mapping) and "labels" in batches[0]):
        return batches[:4]
    if any(padding(batch) is not None for batch in batches):
        return [narrow(batch, 4, ids.shape[1]) for batch in batches[:4]]
    masked = loss.name == "masked"  # about one token in seven
    count, tokens = (8, 4 * tokens) if masked else (4, tokens)
    length = min(ids.shape[1], 128, max(32, tokens // count))
    rows = max(1, round(tokens / length / count))
    windows = torch.cat([token_ids(batch)[:, :length] for batch in batches])[: count * rows]  # type: ignore[index]
    if masked and len(windows) < count * rows:
        rows = max(1, len(windows) // count)
        windows = windows[: count * rows]
    return [with_ids(batches[0], part) for part in torch.split(windows, rows)]


def windows(batches: list[object], loss: Loss, *, count: int, tokens: int) -> list[object]:
    """At most `count` single rows that share no text, cut to one length so that they hold about `tokens`.

    Where one token in seven counts, a window is the same row several times with other tokens hidden in each. Batches
    with more than ids keep their rows whole; a contrastive batch is not cut: its windows are its negatives.
    """
    if loss.name == "contrastive":
        return batches[:count]
    if any(token_ids(batch) is None or not _ids_alone(batch) for batch in batches):
        each = -(-count // len(batches))
        return [row for batch in batches for row in _rows_apart(batch, each)][:count]
    rows = [row for batch in batches for row in cast("Tensor", token_ids(batch))][:count]
    length = min(min(map(len, rows)), max(WINDOW, tokens // len(rows)))
    repeats = DRAWS if loss.name == "masked" else 1
    return [with_ids(batches[0], row[None, :length].repeat(repeats, 1)) for row in rows]


def _ids_alone(batch: object) -> bool:
    """Nothing but token ids: no padding, no labels, nothing for a decoder."""
    if isinstance(batch, Mapping):
        return set(batch) <= {"input_ids", "attention_mask"} and padding(batch) is None
    return isinstance(batch, Tensor) or (isinstance(batch, (tuple, list)) and len(batch) == 1)


def candidate_runs(angular: Sequence[Sequence[float]], *, tries: int = 3) -> list[tuple[int, int]]:
    """Runs worth skipping: for n = 2, 4, 8 ... up to half of the depth, the starts with the least angular distance."""
    depth, runs, length = len(angular), [], 2
    while length <= depth // 2:
        starts = list(range(depth - length + 1))
        starts.sort(key=lambda s: angular[s][length - 1])
        runs += [(start, length) for start in starts[:tries]]
        length *= 2
    return runs
