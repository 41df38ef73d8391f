"""What the model says: its loss beside chance and token frequencies, how sure it is, and whether context helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.probes.inputs.losses import Loss, call, logits_of, padding, token_ids, with_ids
from normlab.probes.measure.table import Number, Real, Sparse
from normlab.probes.trace.hooks import Layout, slow_path


@dataclass(frozen=True)
class OutputReading(Sparse):
    """Nats per token, means over the tokens that the loss counts."""

    loss: Real
    chance: Number
    frequencies: Real  # what the frequencies of single tokens of this text alone would score
    entropy: Real  # of the model's own predictions: about the loss where it knows what it does not know
    favourite: Real  # share of the places where its commonest prediction comes first
    early: Number = None  # loss on the first eighth of a window, behind its first token
    late: Number = None  # on the last half
    leak: Number = None  # change of earlier predictions when the last token changes, over their own size


@torch.no_grad()
def read_outputs(layout: Layout, batches: Sequence[object], loss: Loss, *, tokens: int = 4096) -> OutputReading | None:
    """None where the loss does not come from logits over a vocabulary."""
    if loss.targets is None:
        return None
    nats, sure, first, early, late = [], [], [], [], []
    seen: list[Tensor] = []
    counted = 0
    with slow_path():
        for batch in batches:
            given, targets, kept = loss.targets(batch)
            logits = logits_of(call(layout.model, given)).float()
            logits = logits[:, : targets.shape[1]]
            logs = logits.log_softmax(-1)
            nll = -logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            nats.append(nll[kept])
            sure.append(torch.special.entr(logs.exp()).sum(-1)[kept])
            first.append(logits.argmax(-1)[kept])
            seen.append(targets[kept])
            if loss.name == "causal" and targets.shape[1] >= 16:
                eighth, half = max(2, targets.shape[1] // 8), targets.shape[1] // 2
                early.append(nll[:, 1:eighth][kept[:, 1:eighth]])
                late.append(nll[:, half:][kept[:, half:]])
            counted += int(kept.sum())
            if counted >= tokens:
                break
    if not counted:
        return None
    answers = torch.cat(first)
    return OutputReading(
        loss=float(torch.cat(nats).mean()),
        chance=loss.chance,
        frequencies=frequency_loss(torch.cat(seen), logits.shape[-1]),
        entropy=float(torch.cat(sure).mean()),
        favourite=float(answers.bincount().max()) / len(answers),
        early=float(torch.cat(early).mean()) if early else None,
        late=float(torch.cat(late).mean()) if late else None,
        leak=_leak(layout, batches[0]) if loss.name == "causal" else None,
    )


def frequency_loss(tokens: Tensor, vocabulary: int) -> float:
    """-log p of each token from the counts of the others, smoothed by the constant that serves best."""
    counts = tokens.bincount(minlength=vocabulary).double()
    others, total = counts[tokens] - 1, len(tokens) - 1
    best = math.inf
    for extra in (1.0, 0.3, 0.1, 0.03, 0.01, 0.001):
        best = min(best, float(-((others + extra) / (total + extra * vocabulary)).log().mean()))
    return best


def _leak(layout: Layout, batch: object) -> float | None:
    """A model that predicts the next token must not see it: another last token leaves earlier predictions as they are."""
    ids = token_ids(batch)
    if ids is None or ids.shape[1] < 4 or padding(batch) is not None:
        return None
    ids = ids[:2]
    other = ids.clone()
    other[:, -1] = ids[:, -2] if bool((ids[:, -1] != ids[:, -2]).all()) else (ids[:, -1] + 1) % (int(ids.max()) + 1)
    with slow_path():
        a, b = (logits_of(call(layout.model, with_ids(batch, each)))[:, :-1].float() for each in (ids, other))
    return float((a - b).norm() / (a - a.mean(-1, keepdim=True)).norm().clamp_min(1e-30))
