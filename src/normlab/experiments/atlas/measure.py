"""The atlas: every scheme at initialisation, measured on real text and laid beside its law.

For each scheme one model of the same shape is built with the scheme's own initialisation and looked at once: what each
branch reads, what it adds, which layer gets the gradient, how depth is mixed, what it costs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normlab.model import Transformer, TransformerConfig
from normlab.report import progress
from normlab.schemes import Frame, SchemeConfig, scheme
from normlab.tasks import Text


@dataclass(frozen=True)
class Entry:
    """One scheme's page of the atlas. Per branch: M values; reads have one more, the head's."""

    scheme: str
    equation: str
    parameters: int
    residual_parameters: int
    loss: float
    stream: list[float]  # rms of h at each read
    law: list[float | None]  # the same by the scheme's closed form (unit branches), middle of a bound
    contribution: list[float]  # |v| / |h| of each branch
    influence: list[float]  # 1 - cos(h, next h)
    gradient_share: list[float]  # of each layer, in squared norm
    mixing: list[list[float]] | None  # mean over tokens
    step_ratio: float  # time of a training step against the first scheme's


def measure(
    names: Sequence[str], *, depth: int, dim: int, batch: int = 4, length: int = 64, seed: int = 0, rounds: int = 7
) -> list[Entry]:
    """Look at each scheme once; step times are interleaved over the schemes, medians of `rounds`."""
    task = Text()
    sample = task.sample(batch, length, torch.Generator().manual_seed(seed))
    models = []
    for name in names:
        torch.manual_seed(seed)
        config = TransformerConfig(
            vocab_size=task.vocab_size, dim=dim, depth=depth, heads=max(1, dim // 32), scheme=scheme(name)
        )
        models.append(Transformer(config))
    seen = [_look(m, sample.tokens, sample.targets) for m in progress(models, what="measuring")]
    times = _interleaved(models, sample.tokens, sample.targets, rounds)
    return [Entry(**found, step_ratio=t / times[0]) for found, t in zip(seen, times, strict=True)]


def _look(model: Transformer, tokens: Tensor, targets: Tensor) -> dict[str, Any]:
    config = model.config.scheme
    with model.scheme.taped() as tape:
        loss = _loss(model, tokens, targets)
    loss.backward()
    reads = [h.detach() for h in tape.reads]
    sizes = [_rms(h) for h in reads]
    added = [_rms(v.detach()) for v in tape.sources[-len(model.sites) :]] if tape.sources else []
    mixing = None
    if model.scheme.not_linear is None:
        mixing = model.depth_mixing(tokens[:1]).mean((0, 1)).tolist()
    return {
        "scheme": config.name,
        "equation": config.card.equation,
        "parameters": model.num_parameters(),
        "residual_parameters": sum(p.numel() for p in model.scheme.parameters()),
        "loss": loss.item(),
        "stream": sizes,
        "law": law_of(config, model.scheme.frame),
        "contribution": [v / h for v, h in zip(added, sizes, strict=False)],
        "influence": [1 - _cosine(a, b) for a, b in pairwise(reads)],
        "gradient_share": _gradient_share(model),
        "mixing": mixing,
    }


def law_of(config: SchemeConfig, frame: Frame) -> list[float | None]:
    """The scheme's growth law as an rms; the geometric middle where it is a bound."""
    values: list[float | None] = []
    for stated in config.growth(frame):
        if isinstance(stated, tuple):
            stated = (max(stated[0], 1e-12) * stated[1]) ** 0.5
        values.append(None if stated is None else stated**0.5)
    return values


def _loss(model: Transformer, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def _cosine(a: Tensor, b: Tensor) -> float:
    return F.cosine_similarity(a, b, dim=-1).mean().item()


def _gradient_share(model: Transformer) -> list[float]:
    """Squared gradient norm of each layer's branches, as a share of the total."""
    per_layer = [0.0] * model.config.depth
    for site, branch in zip(model.sites, model.branches, strict=True):
        per_layer[site.layer - 1] += sum(
            p.grad.square().sum().item() for p in branch.parameters() if p.grad is not None
        )
    total = sum(per_layer) or 1.0
    return [value / total for value in per_layer]


def _interleaved(models: Sequence[Transformer], tokens: Tensor, targets: Tensor, rounds: int) -> list[float]:
    times: list[list[float]] = [[] for _ in models]
    for round_ in progress(range(rounds + 1), what="timing", total=rounds + 1):
        for index, model in enumerate(models):
            model.zero_grad(set_to_none=True)
            start = time.perf_counter()
            _loss(model, tokens, targets).backward()
            if round_:  # the first round warms up
                times[index].append(time.perf_counter() - start)
    return [median(t) for t in times]


def to_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [asdict(entry) for entry in entries]


def parse_names(text: str | None, default: Sequence[str]) -> list[str]:
    """`a,b,c` checked against the registry; None takes the default."""
    names = list(default) if text is None else [part.strip() for part in text.split(",")]
    return [scheme(name).name for name in names]
