"""K minimal models as one program: the fast path (`fused`) with a leading axis of members, compiled where it pays."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap

from normlab.model import Transformer
from normlab.tasks import SetComplement, Task
from normlab.training.fused import MinimalWeights, whole
from normlab.training.minimal import weights, why_not

COMPILE_FROM = 5_000
"""Steps; compiling takes 10 to 30 seconds and saves about 4 milliseconds a step."""


def stacks(model: nn.Module) -> bool:
    """Does the stacked fast path serve this model?"""
    return why_not(model) is None and next(model.parameters()).device.type == "cpu"


def can_compile() -> bool:
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


class StackedMinimal:
    """`losses, gradient = stacked(flat, tokens, targets, law)`; `flat` is [members, parameters] in the model's order."""

    def __init__(self, model: nn.Module, task: Task, *, compiled: bool) -> None:
        assert isinstance(model, Transformer)
        entered = weights(model)
        place = {id(p): i for i, p in enumerate(entered) if p is not None}
        self.fields = [place[id(p)] for p in model.parameters()]
        self.shapes = [p.shape for p in model.parameters()]
        self.absent = len(entered)
        self.scale, self.eps = float(model.branches[0].scale), model.config.eps  # type: ignore[arg-type]
        self.exact = task.targets == "exact"
        # Prefix counts are cheaper where no token comes twice; the task knows it without looking at the batch.
        self.distinct = isinstance(task, SetComplement) and not task.replacement
        program: Callable[..., tuple[Tensor, Tensor]] = vmap(self._one, in_dims=(0, 0, 0, 0 if self.exact else None))
        self.program = torch.compile(program, dynamic=False, options={"cpp_wrapper": True}) if compiled else program

    def _one(self, flat: Tensor, tokens: Tensor, targets: Tensor, law: Tensor | None) -> tuple[Tensor, Tensor]:
        parts = flat.split([shape.numel() for shape in self.shapes])
        found: list[Tensor | None] = [None] * self.absent
        for field, part, shape in zip(self.fields, parts, self.shapes, strict=True):
            found[field] = part.view(shape)
        known = None if law is None else law.flatten(0, 1)
        entered = MinimalWeights(*found)  # type: ignore[arg-type]
        loss, *slopes = whole(tokens, targets, known, self.distinct, entered, self.scale, self.eps)
        return loss, torch.cat([slopes[field].flatten() for field in self.fields])  # type: ignore[return-value, union-attr]

    @torch.no_grad()
    def __call__(self, flat: Tensor, tokens: Tensor, targets: Tensor, law: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.program(
            flat.detach(), tokens, targets, law.to(flat.dtype) if self.exact and law is not None else None
        )


def stacked_program(models: Sequence[nn.Module], task: Task, steps: int) -> StackedMinimal | None:
    """The program for these models, or None where the general one must do."""
    if not stacks(models[0]):
        return None
    return StackedMinimal(models[0], task, compiled=steps >= COMPILE_FROM and can_compile())
