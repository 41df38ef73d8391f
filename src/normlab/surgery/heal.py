"""Training after an operation: healing (the layers beside a gap alone), and rates for what a swap has added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from normlab.errors import ConfigError
from normlab.probes.inputs.losses import Loss


class Group(TypedDict):
    """A group of torch's optimizers."""

    params: list[Tensor]
    lr: float
    weight_decay: float


@dataclass(frozen=True)
class Heal:
    """What to train on, and how long. `batches` are used in turn; they must not be those of the judgement."""

    batches: Sequence[object]
    steps: int = 300
    lr: float = 1e-4
    warmup: int = 20
    clip: float = 1.0

    def __post_init__(self) -> None:
        if not self.batches:
            raise ConfigError("healing needs batches to train on: Heal(batches=[...])")
        if self.steps < 1 or self.lr <= 0:
            raise ConfigError(f"healing takes at least one step and a rate above 0; got {self.steps} steps at {self.lr}")


def neighbours(kept: Sequence[int], depth: int) -> list[int]:
    """Positions, among the layers that are left, beside a gap."""
    found = set()
    for at, layer in enumerate(kept):
        before = kept[at - 1] if at else -1
        after = kept[at + 1] if at + 1 < len(kept) else depth
        if layer - before > 1 or after - layer > 1:
            found.add(at)
    return sorted(found)


def heal(model: nn.Module, layers: Sequence[nn.Module], loss: Loss, how: Heal) -> list[float]:
    """Train these layers alone; the loss of every step."""
    trained = [parameter for layer in layers for parameter in layer.parameters()]
    wanted = {id(parameter) for parameter in trained}
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    mode = model.training
    optimizer = torch.optim.AdamW(trained, lr=how.lr, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    try:
        for parameter, _ in before:
            parameter.requires_grad_(id(parameter) in wanted)
        model.eval()  # no dropout: a few hundred steps beside weights that are fixed
        for step in range(how.steps):
            scale = min(1.0, (step + 1) / max(1, how.warmup)) * (1 - step / how.steps)
            for group in optimizer.param_groups:
                group["lr"] = how.lr * scale
            value: Any = loss(model, how.batches[step % len(how.batches)])
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(trained, how.clip)
            optimizer.step()
            losses.append(float(value))
    finally:
        for parameter, flag in before:
            parameter.requires_grad_(flag)
            if not flag:
                parameter.grad = None
        model.train(mode)
    return losses


def parameter_groups(model: nn.Module, *, lr: float, new: float = 10.0, weight_decay: float = 0.0) -> list[Group]:
    """Groups for an optimizer: what a swap added learns `new` times as fast, without weight decay."""
    scheme = getattr(model, "scheme", None)
    added = {id(parameter) for parameter in scheme.parameters()} if isinstance(scheme, nn.Module) else set()
    old = [parameter for parameter in model.parameters() if id(parameter) not in added and parameter.requires_grad]
    fresh = [parameter for parameter in model.parameters() if id(parameter) in added and parameter.requires_grad]
    groups: list[Group] = [{"params": old, "lr": lr, "weight_decay": weight_decay}]
    return [*groups, {"params": fresh, "lr": lr * new, "weight_decay": 0.0}] if fresh else groups
