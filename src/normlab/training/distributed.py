"""One run on several processes under torchrun: DDP (a replica each) or FSDP2 (weights and moments in shards).

    torchrun --nproc-per-node 2 -m normlab train config.yaml --strategy fsdp

Every process draws the same global batch and takes its rows of it, so the run is that of one process on that batch, up
to the order of sums. Checkpoints hold whole tensors in the layout of a single process: a run may go on with another
number of processes, or another strategy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from normlab.errors import ConfigError, NormlabError
from normlab.tasks import IGNORE, Batch
from normlab.training import checkpoint, optim
from normlab.training.loop import Evaluate, Trainer, cross_entropy
from normlab.training.record import Log, LogMark

Strategy = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Group:
    """This process among the others."""

    rank: int
    world: int
    device: torch.device

    @property
    def main(self) -> bool:
        return self.rank == 0

    def mean(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total) / self.world

    def any(self, flag: bool) -> bool:
        mark = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(mark, op=dist.ReduceOp.MAX)
        return bool(mark.item())

    def together(self, action: Callable[[], object]) -> None:
        """Do it on every process. Where one fails all raise its sentence, instead of waiting for that one."""
        try:
            action()
            mine = None
        except (NormlabError, OSError) as error:
            mine = str(error)
        said: list[str | None] = [None] * self.world
        dist.all_gather_object(said, mine)
        for sentence in filter(None, said):
            raise ConfigError(sentence)


def launched() -> bool:
    """Was this process started by torchrun?"""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def process_group(device: str = "cpu") -> Iterator[Group]:
    """Join the others: NCCL between GPUs, gloo otherwise."""
    kind = torch.device(device).type
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local) if kind == "cuda" else torch.device(device)
    if kind == "cuda":
        torch.cuda.set_device(place)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE") and os.path.exists("/sys/class/net/lo"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on this machine: nobody else need reach them
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield Group(dist.get_rank(), dist.get_world_size(), place)
    finally:
        dist.destroy_process_group()


def shard_(model: nn.Module, group: Group) -> None:
    """FSDP2: each branch is gathered when it runs; embedding, head and the residual path with the model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(group.device.type, (group.world,))
    for branch in cast(nn.ModuleList, model.branches):
        fully_shard(branch, mesh=mesh)
    fully_shard(model, mesh=mesh)


def check_batch(batch: int, processes: int) -> None:
    if batch % processes:
        raise ConfigError(
            f"batch: {batch} sequences do not divide among {processes} processes; take a multiple of {processes}"
        )


class Distributed(Trainer):
    """A `Trainer` (or a subclass of it, behind this one) on every process of a group."""

    def __init__(self, model: nn.Module, *args: Any, group: Group, strategy: Strategy, **options: Any) -> None:
        self.group = group
        if strategy == "fsdp":
            shard_(model, group)
        super().__init__(model, *args, **options)
        check_batch(self.config.batch, group.world)
        if strategy == "fsdp" and self.evaluate is not None:
            self.evaluate = _resharding(self.evaluate)
        self.quiet = self.quiet or not group.main
        self._share = 1.0
        # The bare model stays what the optimizer, the averages and the checkpoint see; DDP only runs the forward pass.
        self._forward: nn.Module = DistributedDataParallel(model) if strategy == "ddp" else model
        self.loss = self._weighted

    # -- a step ------------------------------------------------------------------------------------------------------
    def _batch(self) -> Batch:
        whole = super()._batch()
        mine = slice(self.group.rank, None, self.group.world)
        batch = Batch(whole.tokens[mine], whole.targets[mine], None if whole.law is None else whole.law[mine])
        scored = [int((part.targets != IGNORE).sum()) for part in (batch, whole)]
        # Processes average their gradients, so each weighs its mean by its share of what is scored.
        self._share = scored[0] * self.group.world / max(scored[1], 1)
        return batch

    def _weighted(self, _model: nn.Module, batch: Batch) -> Tensor:
        logits = self._forward(batch.tokens)
        return self._share * cross_entropy(logits, batch, exact=self.task.targets == "exact")

    def _mean(self, loss: float) -> float:
        return self.group.mean(loss)

    def _clip(self) -> float:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or float("inf"))
        return float(whole(norm))

    def _agree(self, stopped: list[int]) -> bool:
        # A signal may reach one process a step before another; they save together or not at all.
        stop = self.group.any(bool(stopped))
        if stop and not stopped:
            stopped.append(0)
        return stop

    # -- the disk is the main process's ------------------------------------------------------------------------------
    def _new_log(self) -> Log:
        return super()._new_log() if self.group.main else _NoLog(self.folder / "log.jsonl")

    def _write(self, name: str, value: object) -> None:
        if self.group.main:
            super()._write(name, value)
        dist.barrier()

    def save(self) -> None:
        groups = {
            "model": gathered(self._tensors()),
            "optimizer": gathered(optim.moments(self.optimizer)),
            "average": gathered(self.average.tensors()),
            "random": {"data": self.data.get_state(), "torch": torch.get_rng_state()},
        }
        if self.group.main:
            checkpoint.save(self.folder / "checkpoint", self.step, groups, self._state().to_dict())
        dist.barrier()

    @torch.no_grad()
    def _resume(self) -> None:
        found = checkpoint.latest(self.folder / "checkpoint", accept=self._accept)
        dist.barrier()  # nobody writes before all have read
        if found is None:
            self.log.cut(0)
            return
        _fill(self._tensors(), found.group("model"))
        _fill(self.average.tensors(), found.group("average"))
        self.average.step = found.step
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        moments = found.group("optimizer")
        for path in sorted(moments):  # see `gathered`
            index, key = path.split("/", 1)
            if key != "step":
                moments[path] = like(moments[path], parameters[int(index)])
        optim.load_moments(self.optimizer, moments)
        self._go_on(found)


def _resharding(evaluate: Evaluate) -> Evaluate:
    """FSDP2 keeps the model's own weights gathered after a pass without backward: averages put into the shards would
    not be seen by the next one."""

    def scored(model: nn.Module) -> Mapping[str, object]:
        found = evaluate(model)
        cast(Any, model).reshard()
        return found

    return scored


class _NoLog(Log):
    """Every process but the main one."""

    def cut(self, size: int) -> None: ...
    def open(self) -> None: ...
    def write(self, record: dict[str, object]) -> None: ...
    def sync(self) -> LogMark:
        return LogMark(size=0)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every process (a collective call where it is in shards)."""
    gather = getattr(tensor, "full_tensor", None)
    return gather() if callable(gather) else tensor


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All of them whole. In sorted order: the optimizer's own follows the file it was loaded from, and that order
    differs by process, while collective calls must come in the same order everywhere."""
    return {name: whole(tensors[name]) for name in sorted(tensors)}


def like(full: Tensor, model: Tensor) -> Tensor:
    """A full tensor, cut into shards as `model` is."""
    if not hasattr(model, "full_tensor"):
        return full.to(model.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    sharded = cast(DTensor, model)
    return distribute_tensor(full.to(sharded.device_mesh.device_type), sharded.device_mesh, sharded.placements)


def _fill(mine: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    for name, tensor in mine.items():
        tensor.copy_(like(saved[name], tensor))
