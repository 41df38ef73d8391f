"""The optimizer and the schedule of its learning rate.

AdamW with decoupled decay on weight matrices only; or Muon for the matrices of branches and AdamW for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.config import Config
from normlab.errors import DamagedError, UnsupportedError

KEPT = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")


def decayed(model: nn.Module, *, embeddings: bool = True) -> dict[str, bool]:
    """Which trainable parameters decay: matrices do; norms, gains, biases and all that the scheme owns do not.

    `embeddings`: whether the embedding does (and a head that is tied to it).

    The scheme holds the residual path (gains, mixing matrices, depth queries): decaying those pulls the path itself
    towards zero, whatever their number of dimensions.
    """
    scheme = getattr(model, "scheme", None)
    owned = {id(p) for p in scheme.parameters()} if isinstance(scheme, nn.Module) else set()
    table = getattr(model, "embedding", None)
    if not embeddings and isinstance(table, nn.Module):
        owned |= {id(p) for p in table.parameters()}
    return {name: p.ndim >= 2 and id(p) not in owned for name, p in model.named_parameters() if p.requires_grad}


def adamw(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    decay_embeddings: bool = True,
    but: Collection[str] = (),
) -> torch.optim.AdamW:
    """The optimizer of every run here; fused where torch has it. Parameters named in `but` are somebody else's."""
    decays = decayed(model, embeddings=decay_embeddings)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad and name not in but}
    groups = [
        {"params": [named[n] for n in named if decays[n]], "weight_decay": weight_decay},
        {"params": [named[n] for n in named if not decays[n]], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in named.values())
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, eps=eps, fused=fused)


def branch_matrices(model: nn.Module) -> list[str]:
    """The weight matrices of attention and FFN, which Muon orthogonalises. The stacked q, k, v are one matrix of them."""
    branches = getattr(model, "branches", None)
    if not isinstance(branches, nn.Module):
        return []
    found = {id(p) for p in branches.parameters() if p.ndim == 2 and p.requires_grad}
    return [name for name, p in model.named_parameters() if id(p) in found]


class MuonAndAdamW:
    """torch's Muon for the matrices of branches, AdamW for the rest, behind the verbs that the training loop uses.

    Muon's steps are scaled to the size of AdamW's (`match_rms_adamw`), so that both take one learning rate.
    """

    def __init__(self, muon: torch.optim.Optimizer, rest: torch.optim.Optimizer) -> None:
        self.parts = (muon, rest)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        for part in self.parts:
            part.step()


AnyOptimizer = torch.optim.Optimizer | MuonAndAdamW


def muon_and_adamw(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    decay_embeddings: bool = True,
) -> MuonAndAdamW:
    kind = getattr(torch.optim, "Muon", None)
    if kind is None:
        raise UnsupportedError(
            f"torch {torch.__version__} has no Muon (it came with 2.9); install a newer torch, or take --optimizer adamw"
        )
    names = branch_matrices(model)
    if not names:
        raise UnsupportedError(f"{type(model).__name__} has no branches whose matrices Muon could take; take adamw")
    named = dict(model.named_parameters())
    muon = kind([named[n] for n in names], lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    rest = adamw(
        model, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, decay_embeddings=decay_embeddings, but=names
    )
    return MuonAndAdamW(muon, rest)


def make_optimizer(
    model: nn.Module,
    *,
    kind: Literal["adamw", "muon"],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decay_embeddings: bool,
) -> AnyOptimizer:
    if kind == "muon":
        return muon_and_adamw(
            model, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, decay_embeddings=decay_embeddings
        )
    return adamw(model, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, decay_embeddings=decay_embeddings)


def moments(optimizer: AnyOptimizer) -> dict[str, Tensor]:
    """The optimizer's state as flat tensors, for a checkpoint."""
    if isinstance(optimizer, MuonAndAdamW):
        return {f"{i}:{name}": t for i, part in enumerate(optimizer.parts) for name, t in moments(part).items()}
    state = optimizer.state_dict()["state"]
    return {f"{index}/{key}": torch.as_tensor(value) for index, row in state.items() for key, value in row.items()}


def _of_part(tensors: dict[str, Tensor], part: int) -> dict[str, Tensor]:
    return {name.partition(":")[2]: t for name, t in tensors.items() if name.startswith(f"{part}:")}


def check_moments(optimizer: AnyOptimizer, tensors: dict[str, Tensor], path: Path) -> None:
    """Raise if these are not the moments of this optimizer's parameters."""
    if isinstance(optimizer, MuonAndAdamW):
        for i, part in enumerate(optimizer.parts):
            check_moments(part, _of_part(tensors, i), path)
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        known = index.isdigit() and int(index) < len(parameters) and key in KEPT
        if not known or (key != "step" and tensor.shape != parameters[int(index)].shape):
            raise DamagedError(
                f"{str(path)!r} is damaged: {name!r} is not a moment of this run's optimizer; delete that folder to go on "
                "from the checkpoint before"
            )


def load_moments(optimizer: AnyOptimizer, tensors: dict[str, Tensor]) -> None:
    if isinstance(optimizer, MuonAndAdamW):
        for i, part in enumerate(optimizer.parts):
            load_moments(part, _of_part(tensors, i))
        return
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
