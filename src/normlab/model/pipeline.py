"""Pipeline parallelism: a Transformer over `torch.distributed.pipelining`, sending only what the receiver lacks.

torch's `PipelineStage` moves activations along one chain: the outputs of stage c are the inputs of stage c + 1, with
static shapes, and gradients return the same way. That is enough for caching, because *which* tensors cross each cut is
known before the first step (`stages.PipelinePlan`), and each stage may have another number. What it cannot express is
that a rank uses a tensor again that an earlier chunk of its own received or made; that is the `Depot` of chunk.py, per
rank and micro-batch. Nothing else of torch's stage or schedules is changed.

Every rank holds the whole scheme (its parameters are small) but only its own branches; the gradients of shared parts
(the scheme, a tied embedding) are summed over the ranks that use them at the end of `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from normlab.errors import ConfigError, InputError, UnsupportedError, canonical, unknown
from normlab.model.chunk import Chunk, Depot
from normlab.model.stages import make_plan
from normlab.model.transformer import Transformer

Loss = Callable[[Tensor, Tensor], Tensor]
# Those that run a whole backward pass per micro-batch; the first two take one chunk a rank.
SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved_1f1b": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
}


class ChunkStage(PipelineStage):
    """torch's stage, which also tells its chunk the micro-batch and counts the bytes that leave."""

    def __init__(
        self,
        chunk: Chunk,
        *,
        device: torch.device,
        input_args: tuple[Tensor, ...],
        output_args: tuple[Tensor, ...],
        group: dist.ProcessGroup | None,
    ) -> None:
        count = len(chunk.plan.chunks)
        super().__init__(chunk, chunk.index, count, device, input_args, output_args, group=group)
        self.sent_forward = self.sent_backward = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.submod.microbatch = fwd_chunk_id  # type: ignore[assignment]
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_fwd_send_ops(fwd_chunk_id)
        self.sent_forward += sum(op.tensor.nbytes for op in ops)
        return ops

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_bwd_send_ops(bwd_chunk_id)
        self.sent_backward += sum(op.tensor.nbytes for op in ops)
        return ops


class Pipeline:
    """This rank's share of a pipelined model. Every rank makes one, with the same arguments.

        pipe = Pipeline(model, shape=(batch, time), microbatches=4, loss=F.cross_entropy, virtual_stages=2)
        loss = pipe.step(tokens, targets)      # forward, backward, shared gradients; the loss on the last rank
        optimizer = AdamW(pipe.parameters())   # of this rank

    `loss` takes a micro-batch's logits [b, t, vocab] and targets [b, t] and returns their mean. `model` is the same on
    all ranks; branches that another rank runs may stay on the meta device.
    """

    cached = True  # a stage keeps the sources that it has seen, and is sent the new ones only

    def __init__(
        self,
        model: Transformer,
        *,
        shape: tuple[int, int],
        microbatches: int,
        loss: Loss,
        schedule: str | None = None,
        virtual_stages: int = 1,
        cuts: Sequence[int] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise ConfigError("a pipeline needs torch.distributed: start it with torchrun and init_process_group first")
        ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        if ranks < 2:
            raise ConfigError(f"a pipeline needs at least 2 processes, and this group has {ranks}")
        if microbatches < 1 or shape[0] % microbatches:
            raise ConfigError(f"{microbatches} micro-batches do not divide a batch of {shape[0]}")
        if model.config.value_residual:
            raise UnsupportedError("value_residual gives every layer the first layer's values: stages do not pass them")
        self.model, self.group, self.shape, self.microbatches = model, group, shape, microbatches
        small = (shape[0] // microbatches, shape[1])
        self.plan = make_plan(
            model.config, ranks=ranks, virtual_stages=virtual_stages, cuts=cuts, cached=self.cached, shape=small
        )
        self.is_last, self._loss, self._forward_only = self.rank == ranks - 1, loss, False
        self.device = self._device()
        depot = Depot()
        self.stages = [
            self._stage(Chunk(model, self.plan, index, depot), small)
            for index in range(self.rank, len(self.plan.chunks), ranks)
        ]
        self.schedule = self._schedule(schedule or ("1f1b" if virtual_stages == 1 else "interleaved_1f1b"))
        # Tied embeddings live on the first and on the last rank, which exchange gradients: a group of the two would
        # have to be made by the whole world in one order, and other pipelines may live in it (data parallel).
        ends = {0: ranks - 1, ranks - 1: 0} if model.head is None else {}
        self._other_end = self._global(ends[self.rank]) if self.rank in ends else None

    # -- one step ----------------------------------------------------------------------------------------------------
    def step(self, tokens: Tensor, targets: Tensor, *, attention_mask: Tensor | None = None) -> Tensor | None:
        """Forward and backward of a batch; gradients add to `.grad`. Returns the mean loss on the last rank."""
        losses: list[Tensor] = []
        with _shared_gradients(self):
            self.schedule.step(
                *self._first(tokens),
                target=targets if self.is_last else None,
                losses=losses,
                **self._masks(attention_mask),
            )
        return torch.stack(losses).sum().detach() if self.is_last else None

    @torch.no_grad()
    def logits(self, tokens: Tensor, *, attention_mask: Tensor | None = None) -> Tensor | None:
        """The model's output for a batch, on the last rank."""
        self._forward_only = True
        try:
            target = tokens if self.is_last else None  # torch wants one, and asks for a loss
            return self.schedule.eval(*self._first(tokens), target=target, **self._masks(attention_mask))  # type: ignore[no-any-return]
        finally:
            self._forward_only = False

    def _first(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Only the first rank feeds tokens in; all of them check, so that none waits for one that refused."""
        if tuple(tokens.shape) != tuple(self.shape):
            raise InputError(f"this pipeline is made for a batch of {list(self.shape)}, not {list(tokens.shape)}")
        if tokens.device != self.device:
            raise InputError(f"the tokens are on {tokens.device} and the stage on {self.device}")
        return (tokens,) if self.rank == 0 else ()

    def _masks(self, attention_mask: Tensor | None) -> dict[str, Tensor]:
        return {} if attention_mask is None else {"attention_mask": attention_mask}

    def _scaled_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self._forward_only:
            return logits.new_zeros(())
        # torch would divide the gradients of each chunk afterwards: twice where chunks of a rank share the scheme.
        return self._loss(logits, targets) / self.microbatches

    # -- what this rank holds ------------------------------------------------------------------------------------------
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Under the whole model's names, so that the ranks' state dicts make up the model's."""
        for name, parameter in self.model.named_parameters():
            if self._is_local(name):
                yield name, parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the chunks on this rank."""
        for _, parameter in self.named_parameters():
            yield parameter

    def traffic(self) -> dict[str, int]:
        """Bytes that this rank has sent so far."""
        return {
            "forward": sum(stage.sent_forward for stage in self.stages),
            "backward": sum(stage.sent_backward for stage in self.stages),
        }

    def _is_local(self, name: str) -> bool:
        part, _, rest = name.partition(".")
        if part == "scheme":
            return True
        if part == "branches":
            index = int(rest.partition(".")[0])
            return any(index in chunk for chunk in self.plan.chunks[self.rank :: self.plan.ranks])
        if part == "embedding":
            return self.rank == 0 or (self.is_last and self.model.head is None)
        return self.rank == 0 if part == "position" else self.is_last  # else the head and its scale

    def _device(self) -> torch.device:
        devices = {parameter.device for parameter in self.parameters()}
        if len(devices) != 1:
            shown = " and ".join(sorted(str(device) for device in devices))
            raise InputError(f"the parameters of rank {self.rank} lie on {shown}: a stage lives on one device")
        (device,) = devices
        if device.type == "meta":
            raise InputError(f"the parameters of rank {self.rank} have no storage (meta device): fill its parts first")
        return device

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank) if self.group is not None else rank

    # -- construction --------------------------------------------------------------------------------------------------
    def _stage(self, chunk: Chunk, shape: tuple[int, int]) -> ChunkStage:
        """Shapes are given, not inferred: torch would run the chunk once on made-up tensors to find them."""
        plan, dtype = self.plan, self.model.embedding.weight.dtype

        def like(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(torch.empty(t.shape, dtype=dtype, device="meta", requires_grad=True) for t in tensors)

        arriving = (torch.empty(shape, dtype=torch.long, device="meta"),)
        leaving = like([torch.empty(*shape, self.model.config.vocab_size, device="meta")])
        if not chunk.first:
            arriving = like(plan.sent(chunk.index - 1, plan.parts[chunk.index - 1]))  # type: ignore[assignment]
        if not chunk.last:
            leaving = like(plan.sent(chunk.index, plan.parts[chunk.index]))
        return ChunkStage(chunk, device=self.device, input_args=arriving, output_args=leaving, group=self.group)

    def _schedule(self, name: str) -> Any:
        name = canonical(name)
        if name not in SCHEDULES:
            hint = "zero-bubble schedules split the backward pass, and the cached gradients with it"
            raise ConfigError(unknown("schedule", name, SCHEDULES, hint=hint))
        single = name in ("gpipe", "1f1b")
        if single and len(self.stages) > 1:
            raise ConfigError(f"the schedule {name} runs one chunk a rank; virtual stages need interleaved_1f1b")
        try:
            return getattr(pipelining, SCHEDULES[name])(
                self.stages[0] if single else self.stages,
                self.microbatches,
                loss_fn=self._scaled_loss,
                scale_grads=False,
            )
        except ValueError as error:
            raise ConfigError(f"the schedule {name} refuses {self.microbatches} micro-batches: {error}") from None


class NaivePipeline(Pipeline):
    """Every stage is sent all sources, each time: what the cache is measured against."""

    cached = False


class _shared_gradients:
    """Sums the gradients that a step adds to parameters which several ranks hold. What was there before stays once."""

    def __init__(self, pipe: Pipeline) -> None:
        model = pipe.model
        self.group = pipe.group
        self.sets: list[tuple[list[Tensor], int | None]] = [(list(model.scheme.parameters()), None)]
        if pipe._other_end is not None:
            self.sets.append(([model.embedding.weight], pipe._other_end))

    def __enter__(self) -> None:
        self.before = [[p.grad for p in parameters] for parameters, _ in self.sets]
        for parameters, _ in self.sets:
            for parameter in parameters:
                parameter.grad = None

    def __exit__(self, kind: object, *_: object) -> None:
        for (parameters, other), earlier in zip(self.sets, self.before, strict=True):
            if kind is None and parameters:
                _sum_gradients(parameters, self.group, other)
            for parameter, old in zip(parameters, earlier, strict=True):
                if old is not None:
                    parameter.grad = old if parameter.grad is None else parameter.grad + old


@torch.no_grad()
def _sum_gradients(parameters: list[Tensor], group: dist.ProcessGroup | None, other: int | None) -> None:
    """Over the group, or with the one rank that also holds them."""
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    if other is None:
        dist.all_reduce(flat, group=group)
    else:
        theirs = torch.empty_like(flat)
        both = [dist.P2POp(dist.isend, flat, other, group), dist.P2POp(dist.irecv, theirs, other, group)]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        flat = flat + theirs
    for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = gradient.view_as(parameter).clone()
