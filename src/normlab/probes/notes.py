"""What a diagnosis says beside its verdicts: what was left out and why, what rounds, what was copied."""

from __future__ import annotations

import torch
from torch import nn

from normlab.probes.inputs.losses import Loss
from normlab.probes.judge.verdicts import listed
from normlab.probes.measure.skips import SkipReport
from normlab.probes.measure.table import Rows
from normlab.probes.measure.twin.rows import scales_by_batch
from normlab.probes.trace.hooks import Layout


def unmeasured(rows: Rows) -> list[str]:
    """Of which layers there are no attention weights, and why."""
    reasons = dict.fromkeys(row.unmeasured for row in rows if row.unmeasured)
    found = []
    for reason in reasons:
        where = [row.layer for row in rows if row.unmeasured == reason]
        found.append(f"attention was not measured in {listed(where)}: {reason}")
    return found


def notes_of(layout: Layout, loss: Loss | None, healthy: bool, causal: SkipReport | None) -> list[str]:
    notes = list(layout.notes)
    if causal and causal.better_without > len(causal.change) / 4:
        notes.append(
            f"without {causal.better_without} of {len(causal.change)} layers the loss falls: the model is sure of "
            "wrong answers on this text, so skips were not used to judge its layers"
        )
    if not healthy:
        notes.append("attention, gradients and skips were left out: NaN or infinities are present")
    elif loss is None:
        notes.append(
            "no loss is known for this class, so gradients and skips were not measured, and a wrong mask would not be seen; "
            'pass loss="causal", "masked" (with mask_id=) or "contrastive", or a function of (model, batch)'
        )
    elif loss.guessed:
        notes.append(
            "taken for a causal language model, as it predicts the next token better than the one that it reads; pass loss= "
            "if it is another"
        )
    notes += _rounding(layout.model)
    if scales_by_batch(layout.model):
        notes.append(
            "activations are quantised with one scale for the whole batch, so what is said of a text depends a little on the "
            "others; that was not judged"
        )
    if layout.mutated:
        names = ", ".join(sorted(name or "the stream" for name in layout.mutated))
        notes.append(f"changed in place by the model, so copied first: {names}")
    return notes


def _rounding(model: nn.Module) -> list[str]:
    """Half precision is measured as it runs: its overflows are real, and its last digits are not."""
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if torch.finfo(kind).bits >= 32:
        return []
    name, step = str(kind).removeprefix("torch."), 100 * torch.finfo(kind).eps
    return [
        f"measured in {name}, which rounds to {step:.2g} %: a verdict whose number is that near to its limit, and skips that "
        "hardly change the loss, may be judged otherwise in a float32 copy (model.float())"
    ]
