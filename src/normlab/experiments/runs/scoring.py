"""How near a model's next-token distribution is to the exact one, at a given length.

A length is scored at its last prefixes (`task.window` of them: one for set complement and retrieval, a whole number of
periods for automata), on sequences that are the same for every model. Sums are in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab.model import Attention
from normlab.model.attention import WEIGHTS, Pass, explicit_weights
from normlab.schemes.norms import precise
from normlab.tasks import IGNORE, SetComplement, Task
from normlab.theory import complement_theorem as theory

TOKENS_AT_ONCE = 16_384


def total_variation(p: Tensor, law: Tensor) -> Tensor:
    return 0.5 * (p - law).abs().sum(-1)


def illegal_mass(p: Tensor, law: Tensor) -> Tensor:
    return (p * (law == 0)).sum(-1)


def auc(score: Tensor, legal: Tensor) -> Tensor:
    """ROC AUC of `score` for `legal` in each row: the chance that a legal token scores above an illegal one, ties half.

    NaN where it is undefined: every token is legal, or none is.
    """
    above = (score.unsqueeze(-1) > score.unsqueeze(-2)).double() + 0.5 * (
        score.unsqueeze(-1) == score.unsqueeze(-2)
    ).double()
    pairs = legal.unsqueeze(-1) & ~legal.unsqueeze(-2)
    return (above * pairs).sum((-1, -2)) / pairs.sum((-1, -2))


def pooled_auc(score: Tensor, legal: Tensor) -> float:
    """The same over all rows together: one threshold for every prefix. By ranks, ties at their mean."""
    score, legal = score.flatten(), legal.flatten()
    positive, negative = int(legal.sum()), int((~legal).sum())
    if not (positive and negative):
        return float("nan")
    _, group, counts = score.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    rank = (last - (counts.double() - 1) / 2)[group]  # mean rank, from 1
    return float((rank[legal].sum() - positive * (positive + 1) / 2) / (positive * negative))


def score(model: nn.Module, task: Task, lengths: Sequence[int], *, count: int = 256) -> dict[str, dict[str, object]]:
    """Per length (as text, for JSON): tv, auc, auc_pooled, undefined, illegal_mass, loss, attention entropy and RMS."""
    ground = task.held_out()
    return {str(length): _at(model, ground, length, count) for length in lengths}


@dataclass
class _Seen:
    """What is gathered while a model is scored, batch by batch."""

    losses: list[Tensor] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    sizes: list[Tensor] = field(default_factory=list)


@torch.no_grad()
def _at(model: nn.Module, task: Task, length: int, count: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(length)  # not the seed of a run: all see the same sequences
    device = next(model.parameters()).device
    window = min(task.window, length)
    found, left = _Seen(), count
    while left > 0:
        size = min(left, max(TOKENS_AT_ONCE // length, 1))
        left -= size
        batch = task.sample(size, length, generator, law=task.exact)
        with _watched(model, window) as seen:
            logits = model(batch.tokens.to(device))[:, -window:].cpu().double()
        targets = batch.targets[:, -window:].flatten()
        found.losses.append(F.cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORE, reduction="none"))
        found.entropies += [torch.stack(seen.entropies).mean()] if seen.entropies else []
        found.sizes += [torch.stack(seen.sizes).mean()] if seen.sizes else []
        found.logits.append(logits)
        found.tokens.append(batch.tokens)
        if batch.law is not None:
            found.laws.append(batch.law[:, -window:])
    scores: dict[str, object] = {
        "loss": torch.cat(found.losses).mean().item(),
        "attention_entropy": torch.stack(found.entropies).mean().item() if found.entropies else None,
        "attention_rms": torch.stack(found.sizes).mean().item() if found.sizes else None,
    }
    if task.exact:
        scores |= _against_law(torch.cat(found.logits), torch.cat(found.laws))
        scores["auc_sequence"] = sequence_auc(model, task, length, count)
    if isinstance(task, SetComplement) and not task.replacement:
        gap, imbalance = theory.balance(torch.cat(found.logits)[:, -1], torch.cat(found.tokens))
        scores |= {"gap": gap.mean().item(), "imbalance": imbalance.mean().item()}
    return scores


@torch.no_grad()
def sequence_auc(model: nn.Module, task: Task, length: int, count: int) -> float | None:
    """ROC AUC of whole sequences by their log-likelihood: members against the same ones with one illegal token.

    The place of that token is drawn among the places where a token is illegal; what follows it stays as it was. Tokens that
    have no law (their prefix is not legal, or nothing is left to say) count for neither. None where no member can be broken.
    """
    generator = torch.Generator().manual_seed(length)
    device = next(model.parameters()).device
    tokens = task.sample(count, length, generator).tokens
    if tokens.is_floating_point() or tokens.dim() != 2 or task.embedding(1) is not None or length < 2:
        return None
    law = task.law(tokens)[:, :-1]
    can_break = ((law == 0) & (law.sum(-1, keepdim=True) > 0)).any(-1)
    rows = can_break.any(-1)
    if not rows.any():
        return None
    tokens, law, can_break = tokens[rows], law[rows], can_break[rows]
    place = torch.multinomial(can_break.double(), 1, generator=generator)
    illegal = (law.gather(1, place[..., None].expand(-1, 1, law.shape[-1])).squeeze(1) == 0).double()
    broken = tokens.scatter(1, place + 1, torch.multinomial(illegal, 1, generator=generator))
    scores = [_log_likelihood(model, part, device) for part in (tokens, broken)]
    member = torch.arange(2 * len(tokens)) < len(tokens)
    return _number(pooled_auc(torch.cat(scores), member))


def _log_likelihood(model: nn.Module, tokens: Tensor, device: torch.device) -> Tensor:
    """Of every token but the first, summed."""
    found = []
    for part in tokens.split(max(TOKENS_AT_ONCE // tokens.shape[1], 1)):
        logits = model(part.to(device))[:, :-1].cpu().double().log_softmax(-1)
        found.append(logits.gather(-1, part[:, 1:, None]).sum((1, 2)))
    return torch.cat(found)


def _against_law(logits: Tensor, law: Tensor) -> dict[str, object]:
    known = law.sum(-1) > 0
    logits, law = logits[known], law[known]
    p, legal = logits.softmax(-1), law > 0
    by_prefix = auc(p, legal)
    defined = ~by_prefix.isnan()
    return {
        "tv": total_variation(p, law).mean().item(),
        "illegal_mass": illegal_mass(p, law).mean().item(),
        "auc": by_prefix[defined].mean().item() if defined.any() else None,
        "auc_pooled": _number(pooled_auc(p[defined], legal[defined])) if defined.any() else None,
        "undefined": int((~defined).sum()),
        "prefixes": len(p),
    }


def _number(value: float) -> float | None:
    return value if value == value else None


@contextmanager
def _watched(model: nn.Module, window: int) -> Iterator[_Seen]:
    """Entropy of attention relative to log(length), and the RMS of what attention adds, at the last prefixes."""
    seen = _Seen()

    def look(module: Attention, inputs: tuple[Tensor, Pass], output: Tensor) -> None:
        seen.sizes.append(precise(output[:, -window:]).square().mean().sqrt().cpu())
        weights = _weights(module, *inputs, window)
        if weights is not None and weights.shape[-1] > 1:
            entropy = -torch.xlogy(weights, weights).sum(-1)
            lengths = torch.arange(weights.shape[-1] - window + 1, weights.shape[-1] + 1, device=weights.device)
            seen.entropies.append((entropy / lengths.double().log().clamp_min(1e-9)).mean().cpu())

    hooks = [m.register_forward_hook(look) for m in model.modules() if isinstance(m, Attention)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _weights(module: Attention, x: Tensor, shared: Pass, window: int) -> Tensor | None:
    """Attention of the last queries, [batch, heads, window, keys] in float64; None outside causal multi-head."""
    if module.kv_heads != module.heads or not module.config.causal:
        return None
    heads, d, time = module.heads, module.head_dim, x.shape[1]
    qk = module.qkv(x)[..., : 2 * heads * d].unflatten(-1, (2 * heads, d))
    q, k = (t.transpose(1, 2) for t in module._queries_and_keys(qk, shared))
    if module.sharpness is not None:
        q = q * module._log_counts(time, time, None, q)
    logits = (q[:, :, -window:] @ k.transpose(-1, -2) * module.scale).double()
    seen = torch.ones(time, time, dtype=torch.bool, device=x.device).tril()[-window:]
    if module.config.softmax in WEIGHTS:
        return explicit_weights(logits.masked_fill(~seen, -1e30), seen, module.config)
    return logits.masked_fill(~seen, -torch.inf).softmax(-1)
