"""The optimizer, AdamW with decoupled decay on weight matrices only, and the schedule of its learning rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.config import Config
from normlab.errors import DamagedError


def decayed(model: nn.Module) -> dict[str, bool]:
    """Which trainable parameters decay: matrices do; norms, gains, biases and all that the scheme owns do not.

    The scheme holds the residual path (gains, mixing matrices, depth queries): decaying those pulls the path itself
    towards zero, whatever their number of dimensions.
    """
    scheme = getattr(model, "scheme", None)
    owned = {id(p) for p in scheme.parameters()} if isinstance(scheme, nn.Module) else set()
    return {name: p.ndim >= 2 and id(p) not in owned for name, p in model.named_parameters() if p.requires_grad}


def adamw(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> torch.optim.AdamW:
    """The optimizer of every run here; fused where torch has it."""
    decays = decayed(model)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = [
        {"params": [named[n] for n in named if decays[n]], "weight_decay": weight_decay},
        {"params": [named[n] for n in named if not decays[n]], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in named.values())
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, eps=eps, fused=fused)


def moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as flat tensors, for a checkpoint."""
    state = optimizer.state_dict()["state"]
    return {f"{index}/{key}": torch.as_tensor(value) for index, row in state.items() for key, value in row.items()}


def check_moments(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], path: Path) -> None:
    """Raise if these are not the moments of this optimizer's parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        known = index.isdigit() and int(index) < len(parameters) and key in ("step", "exp_avg", "exp_avg_sq")
        if not known or (key != "step" and tensor.shape != parameters[int(index)].shape):
            raise DamagedError(
                f"{str(path)!r} is damaged: {name!r} is not a moment of this run's optimizer; delete that folder to go on "
                "from the checkpoint before"
            )


def load_moments(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    rows: dict[int, dict[str, Tensor]] = {}
    for path, value in tensors.items():
        index, key = path.split("/", 1)
        rows.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": rows})


class Schedule(Config):
    """Linear warm-up, then linear, cosine, or stable and a final decay.

    `factor(n)` multiplies the peak learning rate at update n = 1..steps.
    """

    kind: Literal["linear", "cosine", "wsd", "constant"] = "linear"
    warmup: int = Field(default=0, ge=0)
    final: float = Field(default=0.0, ge=0, le=1)
    """Factor at the last update."""
    decay: float = Field(default=0.2, gt=0, le=1)
    """wsd: the share of all steps that the final (linear) decay takes."""

    def factor(self, n: int, steps: int) -> float:
        if n <= self.warmup:
            return n / self.warmup
        if self.kind == "constant":
            return 1.0
        begin = max(self.warmup, round(steps * (1 - self.decay))) if self.kind == "wsd" else self.warmup
        if n <= begin:
            return 1.0
        done = min((n - begin) / max(steps - begin, 1), 1.0)
        shape = 0.5 * (1 + math.cos(math.pi * done)) if self.kind == "cosine" else 1 - done
        return self.final + (1 - self.final) * shape
