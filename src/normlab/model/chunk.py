"""A pipeline chunk: consecutive branches of a model as a module from wire tensors to wire tensors.

A chunk reads settled tensors that an earlier chunk of its rank has seen from the rank's `Depot`, through a leaf of its
own. In the backward pass later chunks come first: the gradients of those leaves wait in the depot, and join where the
tensor entered the rank (`_Keep`), from where they travel back over the wire, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normlab.model.stages import PipelinePlan
from normlab.model.transformer import Transformer
from normlab.schemes import Parts


class SettledTensor:
    """A settled tensor on this rank, and the leaves through which later chunks read it."""

    def __init__(self, value: Tensor) -> None:
        self.value = value.detach()
        self.readers: list[Tensor] = []

    def fetch(self) -> Tensor:
        if not torch.is_grad_enabled():
            return self.value
        reader = self.value.detach().requires_grad_()
        self.readers.append(reader)
        return reader

    def gradient(self) -> Tensor | None:
        total = None
        for reader in self.readers:
            if reader.grad is not None:
                total = reader.grad if total is None else total + reader.grad
        self.readers.clear()
        return total


class _Keep(torch.autograd.Function):
    """Identity on a chunk's outputs; its backward hands the kept tensors the gradients that wait on this rank.

    One node, on the path of every output, so that it runs however the kept tensors are used inside the chunk.
    """

    @staticmethod
    def forward(ctx: Any, kept: list[SettledTensor], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.kept = kept
        return tuple(t.view_as(t) for t in tensors[: len(tensors) - len(kept)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        return None, *gradients, *(kept.gradient() for kept in ctx.kept)


class Depot:
    """A rank's cache: for each micro-batch the settled tensors that its chunks have seen so far, in order."""

    def __init__(self) -> None:
        self.shelves: dict[int, list[SettledTensor]] = {}

    def fetch(self, microbatch: int, count: int) -> tuple[Tensor, ...]:
        return tuple(kept.fetch() for kept in self.shelves[microbatch][:count]) if count else ()

    def keep(self, microbatch: int, tensors: Sequence[Tensor], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        fresh = [SettledTensor(t) for t in tensors]
        self.shelves.setdefault(microbatch, []).extend(fresh)
        return _Keep.apply(fresh, *outputs, *tensors) if torch.is_grad_enabled() else outputs  # type: ignore[no-any-return]

    def clear(self, microbatch: int) -> None:
        """After a micro-batch's last forward on this rank; `_Keep` holds on to what the backward pass needs."""
        self.shelves.pop(microbatch, None)


class Chunk(nn.Module):
    """Consecutive branches as a module from wire tensors to wire tensors (tokens first, logits last)."""

    model: Transformer

    def __init__(self, model: Transformer, plan: PipelinePlan, index: int, depot: Depot) -> None:
        super().__init__()
        self.plan, self.index, self.depot = plan, index, depot
        self.first, self.last = index == 0, index == len(plan.chunks) - 1
        self.microbatch = 0  # set by ChunkStage before each forward
        self.scheme = model.scheme
        self.branches = nn.ModuleList(model.branches[i] for i in plan.chunks[index])
        self.__dict__["model"] = model  # not a submodule: it has the other ranks' branches too

    def forward(self, *wire: Tensor, attention_mask: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        model, branches = self.model, self.plan.chunks[self.index]
        length = wire[0].shape[1]
        positions = torch.arange(length, device=wire[0].device)
        if self.first:
            stream = self.scheme.open(model.embed(wire[0], positions))
        else:
            stream = self._arrive(wire)
        shared = model.new_pass(positions, attention_mask=attention_mask)
        stream = model.run(stream, shared, branches.start, branches.stop)
        if self.last:
            self.depot.clear(self.microbatch)
            return model.logits(self.scheme.close(stream))
        return self._depart(self.scheme.to_parts(stream))

    def _arrive(self, wire: tuple[Tensor, ...]) -> Any:
        site = self.model.sites[self.plan.chunks[self.index].start]
        known, expected = self.plan.known(self.index), self.plan.parts[self.index - 1]
        fresh = len(expected.settled) - known
        settled = (*self.depot.fetch(self.microbatch, known), *wire[:fresh])
        return self.scheme.from_parts(Parts(settled, wire[fresh:]), self.plan.streams[self.index - 1], site)

    def _depart(self, parts: Parts) -> tuple[Tensor, ...]:
        outputs = tuple(t.contiguous() for t in self.plan.sent(self.index, parts))
        kept = self.plan.kept(self.index)
        if kept:
            return self.depot.keep(self.microbatch, [parts.settled[i] for i in kept], outputs)
        self.depot.clear(self.microbatch)
        return outputs
