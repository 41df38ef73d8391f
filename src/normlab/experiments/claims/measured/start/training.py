"""Small models trained for a claim: the library's own loop, kept in a folder so that a second call only reads."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from normlab.model import Transformer, TransformerConfig
from normlab.schemes import parse_scheme
from normlab.tasks import Task
from normlab.training import Schedule, TrainConfig, Trainer

Model = TypeVar("Model", bound=nn.Module)


def minimal_model(scheme: str, seed: int, *, vocab: int, dim: int | None = None) -> Transformer:
    """One layer, attention only, one head, no positions; d = v - 1 unless told."""
    torch.manual_seed(seed)
    width = dim or vocab - 1
    return Transformer(
        TransformerConfig(
            vocab_size=vocab, dim=width, depth=1, heads=1, ffn="none", positions="nope", scheme=parse_scheme(scheme),
            tie_embeddings=False, start="authors", init_std=width**-0.5,
        )
    )  # fmt: skip


def train(
    model: Model,
    task: Task,
    folder: Path,
    *,
    seed: int,
    steps: int = 3000,
    length: int = 8,
    lr: float = 3e-3,
    batch: int = 64,
) -> Model:
    """To the end, with AdamW, a short warm-up and a decay to zero; the model that comes back is trained."""
    config = TrainConfig(
        steps=steps, batch=batch, length=length, seed=seed, lr=lr, schedule=Schedule(warmup=max(1, steps // 20)),
        weight_decay=0.01, log_every=max(1, steps // 10), checkpoint_every=max(1, steps // 2),
    )  # fmt: skip
    trainer = Trainer(model, task, config, folder, quiet=True)
    trainer.run()
    return model
