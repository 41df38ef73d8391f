"""What several subjects need: hooks on the stream, other checkpoints of the same run, lessons that go on from where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Anatomy, Layer, dissect
from ..backbones import AGES, KINDS, Backbone, Run, load, loss_of, optimizer_of, windows
from ..protocol import Dice, Patient

BIASED = ("post", "encoder")  # LayerNorm and biases; the others have root mean squares and no bias
ROOT = ("pre", "peri", "res", "moe")
UNTIED = ("pre", "res", "moe")
TIED = ("post", "peri", "encoder")
Loss = Callable[[nn.Module, Tensor, str, torch.Generator], Tensor]


@dataclass(frozen=True)
class Variant:
    """A healthy model in other clothes: `change(patient, dice)` must not be taken for a fault."""

    name: str
    change: Callable[[Patient, Dice], None]
    kinds: tuple[str, ...] = KINDS
    tolerance: float = 1e-5  # of the loss, in nats


def stream_of(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def with_stream(output: Any, stream: Tensor) -> Any:
    return (stream, *output[1:]) if isinstance(output, tuple) else stream


def handed_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def with_handed_in(args: tuple[Any, ...], kwargs: dict[str, Any], stream: Tensor) -> tuple[tuple[Any, ...], Any]:
    return ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})


def matrices(layer: Layer) -> tuple[Tensor, ...]:
    """Every matrix of a layer but the router, as data."""
    return (*(item.weight.data for item in layer.projections), *layer.rise, *layer.fall)


def rise_linear(layer: Layer) -> nn.Linear:
    """The module of `rise` where there is one: in OPT and BERT."""
    return layer.module.fc1 if hasattr(layer.module, "fc1") else layer.module.intermediate.dense


def rows_of(heads: list[int], width: int) -> Tensor:
    """The rows of these heads, one head after the other."""
    return torch.cat([torch.arange(head * width, (head + 1) * width) for head in heads])


def older(patient: Patient, age: int) -> Anatomy:
    """The same run at that age, or at the oldest below it that was kept."""
    kept = max(stored for stored in AGES if stored <= age)
    return dissect(load(Backbone(patient.backbone.run, kept if age < patient.backbone.age else 0)), patient.kind)


def stranger(patient: Patient) -> Patient:
    """Another seed of the same shape and age."""
    run: Run = replace(patient.backbone.run, seed=1 - patient.backbone.run.seed)
    backbone = Backbone(run, patient.backbone.age)
    model = load(backbone)
    return Patient(backbone, model, dissect(model, patient.kind), patient.windows)


def plays(step: int) -> Tensor:
    return windows(4, 90_000 + step)


@dataclass(frozen=True)
class Lesson:
    """Some steps of AdamW from where the model is. `before` sees the optimizer between the gradient and the step."""

    steps: int
    rate: float = 3e-4
    text: Callable[[int], Tensor] = plays
    loss: Loss = loss_of
    before: Callable[[int, torch.optim.Optimizer], None] = lambda step, optimizer: None
    fast: tuple[nn.Parameter, ...] = ()
    fast_rate: float = 0.0


def school(model: nn.Module, kind: str, lesson: Lesson, *, learners: tuple[nn.Parameter, ...] = ()) -> None:
    """In place; only `learners` move, or everything."""
    model.train()
    moving, hasty = {id(p) for p in learners or model.parameters()}, {id(p) for p in lesson.fast}
    was = {id(p): p.requires_grad for p in model.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(was[id(parameter)] and id(parameter) in moving and id(parameter) not in hasty)
    optimizer = optimizer_of(model, lesson.rate)
    for parameter in lesson.fast:
        parameter.requires_grad_(True)
    if lesson.fast:
        optimizer.add_param_group({"params": list(lesson.fast), "lr": lesson.fast_rate, "weight_decay": 0.0})
    generator = torch.Generator().manual_seed(5)
    for step in range(lesson.steps):
        lesson.loss(model, lesson.text(step), kind, generator).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        lesson.before(step, optimizer)
        optimizer.step()
        optimizer.zero_grad()
    for parameter in model.parameters():
        parameter.requires_grad_(was[id(parameter)])
    model.eval()
