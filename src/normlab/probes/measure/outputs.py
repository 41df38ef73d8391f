"""What the model says: its loss beside chance and token frequencies, how sure it is, and whether context helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normlab.probes.inputs.losses import Loss, call, logits_of, narrow, padding, token_ids, with_ids
from normlab.probes.measure.table import Number, Real, Sparse
from normlab.probes.trace.hooks import Layout, slow_path
from normlab.probes.trace.tensors import first_tensor


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
    repeat: Number = None  # change between two passes over the same text, over their own size
    sharpness: Number = None  # the factor on the logits at which the loss is least
    kind: str | None = None  # of the loss: causal, masked
    normed: bool | None = None  # False: the head reads what leaves the last layer as it is


@torch.no_grad()
def read_outputs(layout: Layout, batches: Sequence[object], loss: Loss, *, tokens: int = 4096) -> OutputReading | None:
    """None where the loss does not come from logits over a vocabulary."""
    if loss.targets is None:
        return None
    nats, sure, first, early, late, sharper = [], [], [], [], [], []
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
            some = slice(None, None, max(1, int(kept.sum()) // 128))
            sharper.append(_sharper(logits[kept][some], targets[kept][some]))
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
        repeat=_repeat(layout, batches[0]),
        sharpness=FACTORS[int(torch.cat(sharper, 1).mean(1).argmin())],
        kind=loss.name,
        normed=_normed(layout, batches[0]),
    )


# What the logits are multiplied by: at 1 a trained model does best.
FACTORS = tuple(2 ** (step / 2) for step in range(-8, 9))


def _sharper(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each target [factors, targets] for logits that are sharper or flatter."""
    return torch.stack([cross_entropy(logits * factor, targets, reduction="none") for factor in FACTORS])


def _repeat(layout: Layout, batch: object) -> float:
    """Nothing may be left to chance in a model that is not in training: dropout, noise on a router."""
    small = narrow(batch, 2, 64)
    with slow_path():
        a, b = (logits_of(call(layout.model, small)).float() for _ in range(2))
    return float((a - b).norm() / (a - a.mean(-1, keepdim=True)).norm().clamp_min(1e-30))


def _normed(layout: Layout, batch: object) -> bool | None:
    """Does anything stand between the last layer and the head? None where one of them is not found."""
    find = getattr(layout.model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if not isinstance(head, nn.Module) or not layout.layers:
        return None
    seen: dict[str, Tensor] = {}
    handles = [
        layout.layers[-1][1].register_forward_hook(lambda _m, _a, out: seen.update(last=first_tensor(out).detach())),
        head.register_forward_pre_hook(lambda _m, args: seen.update(read=args[0].detach())),
    ]
    with slow_path(handles):
        call(layout.model, narrow(batch, 2, 64))
    last, read = seen.get("last"), seen.get("read")
    if last is None or read is None or last.shape != read.shape:
        return None
    return float((last.float() - read.float()).norm()) > 1e-5 * float(last.float().norm())


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
