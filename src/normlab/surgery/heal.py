"""Training after an operation: healing (the layers beside a gap alone), and rates for what a swap has added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.config import Config
from normlab.errors import ConfigError, InputError
from normlab.probes.inputs.losses import Loss, pick
from normlab.results import Result


class ParameterGroup(TypedDict):
    """A group of torch's optimizers."""

    params: list[nn.Parameter]
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
            raise ConfigError(
                f"healing takes at least one step and a rate above 0; got {self.steps} steps at {self.lr}"
            )


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
            value = loss(model, how.batches[step % len(how.batches)])
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(trained, how.clip)
            optimizer.step()
            losses.append(float(value.detach()))
    finally:
        for parameter, flag in before:
            parameter.requires_grad_(flag)
            if not flag:
                parameter.grad = None
        model.train(mode)
    return losses


def parameter_groups(
    model: nn.Module, *, lr: float, new: float = 10.0, weight_decay: float = 0.0
) -> list[ParameterGroup]:
    """Groups for an optimizer: what a swap added learns `new` times as fast, without weight decay."""
    scheme = getattr(model, "scheme", None)
    added = {id(parameter) for parameter in scheme.parameters()} if isinstance(scheme, nn.Module) else set()
    old = [parameter for parameter in model.parameters() if id(parameter) not in added and parameter.requires_grad]
    fresh = [parameter for parameter in model.parameters() if id(parameter) in added and parameter.requires_grad]
    groups: list[ParameterGroup] = [{"params": old, "lr": lr, "weight_decay": weight_decay}]
    return [*groups, {"params": fresh, "lr": lr * new, "weight_decay": 0.0}] if fresh else groups


class Continue(Config):
    """How a model that was operated on is trained on; `normlab train FOLDER steps=500 lr=1e-5`."""

    what: ClassVar[str] = "training of a folder"
    text: str | None = Field(None, description="a text file, whose last tenth judges; else the sample that ships")
    steps: int = Field(200, ge=1)
    lr: float = Field(2e-5, gt=0)
    new: float = Field(10.0, gt=0, description="how many times faster the parameters learn that a swap added")
    warmup: int = Field(10, ge=0)
    batch: int = Field(1, ge=1, description="windows a step")
    length: int = Field(256, ge=4, description="tokens in a window")
    weight_decay: float = Field(0.0, ge=0)
    clip: float = Field(1.0, gt=0)
    validate_every: int = Field(20, ge=1)
    seed: int = Field(0, ge=0)


@dataclass(frozen=True)
class HealingCurve(Result):
    """The held-out loss by step."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    kind: str = "continued"

    @property
    def text(self) -> str:
        return f"held-out loss {self.losses[0]:.4f} before, {self.losses[-1]:.4f} after {self.steps[-1]} steps"


def continue_training(
    model: nn.Module,
    train: Tensor,
    held_out: Sequence[object],
    how: Continue,
    *,
    tell: Callable[[int, float], None] = lambda step, loss: None,
) -> HealingCurve:
    """AdamW on windows of token ids [windows, length], drawn in an order that the seed decides."""
    loss = pick("auto", model, held_out[0])
    if loss is None:
        raise InputError(f"{type(model).__name__} has no loss of its own on text: load it with its head")
    groups = parameter_groups(model, lr=how.lr, new=how.new, weight_decay=how.weight_decay)
    rates = [group["lr"] for group in groups]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))  # type: ignore[arg-type]
    generator, curve = torch.Generator().manual_seed(how.seed), []
    model.train()
    for step in range(how.steps + 1):
        if step % how.validate_every == 0 or step == how.steps:
            curve.append((step, _validated(model, held_out, loss)))
            tell(*curve[-1])
        if step == how.steps:
            break
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / max(1, how.warmup))
        rows = torch.randint(len(train), (how.batch,), generator=generator)
        optimizer.zero_grad()
        loss(model, {"input_ids": train[rows].to(next(model.parameters()).device)}).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), how.clip)
        optimizer.step()
    model.eval()
    return HealingCurve(tuple(step for step, _ in curve), tuple(value for _, value in curve))


@torch.no_grad()
def _validated(model: nn.Module, batches: Sequence[object], loss: Loss) -> float:
    mode = model.training
    model.eval()
    values = [float(loss(model, batch)) for batch in batches]
    model.train(mode)
    return sum(values) / len(values)
