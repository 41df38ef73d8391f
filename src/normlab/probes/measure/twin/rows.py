"""Rows of a batch are texts of different people: what one says must not depend on who else is there."""

from __future__ import annotations

import torch
from torch import nn

from normlab.probes.inputs.losses import call, logits_of, narrow, padding, token_ids
from normlab.probes.measure.twin.compare import apart
from normlab.probes.trace.hooks import slow_path


def scales_by_batch(model: nn.Module) -> bool:
    """Dynamic quantisation takes one scale for the activations of a whole batch: rows depend on each other by design."""
    return any(".quantized.dynamic" in type(module).__module__ for module in model.modules())


@torch.no_grad()
def read_rows_apart(model: nn.Module, batch: object, *, tokens: int = 256) -> float | None:
    """How far the first row's predictions move when a second row is there, over their size; None for a single row."""
    ids = token_ids(batch)
    if ids is None or len(ids) < 2 or bool((ids[0] == ids[1]).all()):
        return None
    both, alone = narrow(batch, 2, tokens), narrow(batch, 1, tokens)
    try:
        with slow_path():
            one, other = logits_of(call(model, both)).float(), logits_of(call(model, alone)).float()
    except Exception:  # a model of pairs, or one without logits
        return None
    if one.dim() != 3 or one.shape[0] != 2 or other.shape[0] != 1 or one.shape[1:] != other.shape[1:]:
        return None
    text = padding(both)
    kept = slice(None) if text is None or text.shape[1] != one.shape[1] else text[0].bool()
    return apart(one[0][kept], other[0][kept])
