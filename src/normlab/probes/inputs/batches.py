"""Which part of the batches each stage of a diagnosis looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normlab.probes.inputs.losses import Loss, images, token_ids, with_ids, with_images
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.inputs.texts import position_limit


def first_rows(batch: Any, *, rows: int = 2, tokens: int = 64) -> Any:
    """A small piece of a batch for the identity check: it is of the same kind, and every layer is still run."""
    ids, pixels = token_ids(batch), images(batch)
    if pixels is not None:
        return with_images(batch, pixels[:rows])
    return batch if ids is None else with_ids(batch, ids[:rows, :tokens])


def texts(model: nn.Module, batches: list[Any], options: DiagnoseOptions) -> list[Tensor]:
    """Token ids [1, n] ([2, n] up to 256) for each length n, cut from all batches laid end to end."""
    parts = [ids for ids in (token_ids(batch) for batch in batches) if ids is not None]
    if not parts:
        return []
    ids = torch.cat([part.flatten() for part in parts])
    limit = min(len(ids), options.longest, position_limit(model) or options.longest)
    wanted = options.lengths or [64 << k for k in range(20) if 64 << k <= limit]
    return [ids[: n * (2 if n <= 256 and len(ids) >= 2 * n else 1)].reshape(-1, n) for n in wanted if n <= limit]


def some(batches: list[Any], tokens: int, loss: Loss) -> list[Any]:
    """Whole windows, about so many tokens; a contrastive batch is not cut, because its windows are its negatives."""
    ids = token_ids(batches[0])
    if ids is None or (isinstance(batches[0], dict) and "labels" in batches[0]):
        return batches
    rows = max(1, tokens // ids.shape[1])
    if loss.name == "contrastive" or rows >= len(ids):
        return batches[: max(1, rows // len(ids))]
    return [with_ids(batches[0], ids[:rows])]


def skip_batches(batches: list[Any], loss: Loss, options: DiagnoseOptions) -> list[Any]:
    """Four batches of `skip_tokens` in all, or eight of four times as many where only masked tokens count.

    The contrastive loss needs whole batches of windows.
    """
    ids = token_ids(batches[0])
    if ids is None or loss.name == "contrastive" or (isinstance(batches[0], dict) and "labels" in batches[0]):
        return batches[:4]
    length = min(ids.shape[1], 128)
    masked = loss.name == "masked"  # about one token in seven
    count, tokens = (8, 4 * options.skip_tokens) if masked else (4, options.skip_tokens)
    rows = max(1, tokens // length // count)
    windows = torch.cat([token_ids(batch)[:, :length] for batch in batches])[: count * rows]  # type: ignore[index]
    if masked and len(windows) < count * rows:
        rows = max(1, len(windows) // count)
        windows = windows[: count * rows]
    return [with_ids(batches[0], part) for part in torch.split(windows, rows)]


def candidate_runs(angular: Sequence[Sequence[float]], *, tries: int = 3) -> list[tuple[int, int]]:
    """Runs worth skipping: for n = 2, 4, 8 ... up to half of the depth, the starts with the least angular distance."""
    depth, runs, length = len(angular), [], 2
    while length <= depth // 2:
        starts = list(range(depth - length + 1))
        starts.sort(key=lambda s: angular[s][length - 1])
        runs += [(start, length) for start in starts[:tries]]
        length *= 2
    return runs
