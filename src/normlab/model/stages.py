"""How a model is cut into pipeline stages, and what crosses each cut.

C = P V chunks of consecutive branches go round over P ranks, V on each (chunk c on rank c mod P). A cut may lie between
any two branches: between attention and FFN, or inside a block of Block Attention Residuals. The stream that crosses has
a settled part (closed sources, which never change again) and a moving one (see `schemes.Parts`). A rank that runs chunk
c has held every settled tensor up to the end of its chunk c - P, so that only newer ones need to be sent:

    naive    hop c -> c+1 sends all settled tensors and the moving ones
    cached   it leaves out those that the receiver had received, or made, by the end of chunk c+1-P

With one chunk a rank (V = 1) no rank is visited twice and both are the same: caching helps from V = 2 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from normlab.errors import ConfigError
from normlab.model.config import TransformerConfig
from normlab.schemes import Parts, Scheme
from normlab.schemes.base import Stream


@dataclass(frozen=True)
class PipelinePlan:
    """Which branches each chunk runs, and what crosses each cut: `parts` are tensors on the meta device."""

    chunks: tuple[range, ...]
    ranks: int
    cached: bool
    streams: tuple[Stream, ...]  # after each chunk but the last: for their structure only
    parts: tuple[Parts, ...]
    sources: int  # settled tensors at the end of the model, the embedding among them

    def rank(self, chunk: int) -> int:
        return chunk % self.ranks

    def known(self, chunk: int) -> int:
        """Settled tensors that the chunk's rank holds before anything arrives."""
        before = chunk - self.ranks
        return len(self.parts[before].settled) if self.cached and before >= 0 else 0

    def kept(self, chunk: int) -> range:
        """Settled tensors that the chunk adds to its rank's cache, for its later visits."""
        if not self.cached or chunk + self.ranks >= len(self.chunks):
            return range(0)
        return range(self.known(chunk), len(self.parts[chunk].settled))

    def sent(self, chunk: int, parts: Parts) -> tuple[Tensor, ...]:
        """What chunk -> chunk + 1 carries: the newest settled tensors, then the moving ones."""
        return (*parts.settled[self.known(chunk + 1) :], *parts.moving)

    def hops(self) -> list[int]:
        """Elements that cross each cut."""
        return [sum(t.numel() for t in self.sent(c, parts)) for c, parts in enumerate(self.parts)]


def default_cuts(branches: int, chunks: int) -> tuple[int, ...]:
    return tuple(round(i * branches / chunks) for i in range(1, chunks))


def make_plan(
    config: TransformerConfig,
    *,
    ranks: int,
    virtual_stages: int = 1,
    cuts: Sequence[int] | None = None,
    cached: bool = True,
    shape: tuple[int, int] = (1, 1),
) -> PipelinePlan:
    """`cuts` are the numbers of branches before each cut (default: as even as possible); `shape` is [batch, time]."""
    branches = len(config.sites())
    cuts = _checked(cuts, ranks=ranks, virtual_stages=virtual_stages, branches=branches)
    bounds = (0, *cuts, branches)
    runs = []
    for width, tokens in zip(probe_widths(config), ((1, 2), (2, 1)), strict=True):
        scheme = probe(config, width)
        streams = walk(scheme, torch.zeros(*tokens, width))
        runs.append((width, [scheme.to_parts(stream) for stream in streams], streams))
    (small, parts, streams), (large, others, _) = runs
    return PipelinePlan(
        chunks=tuple(range(first, last) for first, last in pairwise(bounds)),
        ranks=ranks,
        cached=cached,
        streams=tuple(streams[cut] for cut in cuts),
        parts=tuple(_grown(parts[cut], others[cut], shape, config.dim, (small, large)) for cut in cuts),
        sources=len(parts[-1].settled),
    )


# The residual path is run on the CPU at two small widths, and its shapes carried over to the model's: nothing of the
# model's size is allocated, and unlike the meta device (a millisecond an operation) it takes no time.
def probe_widths(config: TransformerConfig) -> tuple[int, int]:
    least = 16 * getattr(config.scheme, "heads", 1)
    return least, 2 * least


def probe(config: TransformerConfig, width: int, *, dtype: torch.dtype = torch.float32) -> Scheme:
    """The scheme of `config` at another width."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        return config.scheme.build(config.frame(width)).to(dtype)


@torch.no_grad()
def walk(scheme: Scheme, x: Tensor) -> list[Stream]:
    """The stream before each branch and at the end, for branches that return something of their input's shape."""
    streams = [scheme.open(x)]
    for site in scheme.frame.sites:
        h, carry = scheme.read(streams[-1], site)
        streams.append(scheme.write(streams[-1], torch.zeros_like(h), carry, site))
    return streams


def _grown(one: Parts, two: Parts, shape: tuple[int, int], dim: int, widths: tuple[int, int]) -> Parts:
    """[batch, time, ...] tensors of the model's size on the meta device: axes that follow the width follow it to d."""

    def grow(a: Tensor, b: Tensor) -> Tensor:
        rest = [m if m == n else m * dim // widths[0] for m, n in zip(a.shape[2:], b.shape[2:], strict=True)]
        return torch.empty(*shape, *rest, device="meta")

    return Parts(*(tuple(map(grow, *pair)) for pair in zip(one, two, strict=True)))


def _checked(cuts: Sequence[int] | None, *, ranks: int, virtual_stages: int, branches: int) -> tuple[int, ...]:
    for name, value in (("stages", ranks), ("virtual_stages", virtual_stages)):
        if value < 1:
            raise ConfigError(f"{name} is {value}, but a pipeline has at least 1")
    chunks = ranks * virtual_stages
    if chunks > branches:
        raise ConfigError(
            f"{ranks} stages x {virtual_stages} virtual stages make {chunks} chunks, but the model has only {branches} "
            "branches (attention or FFN): some would be empty; use fewer stages"
        )
    if cuts is None:
        return default_cuts(branches, chunks)
    if len(cuts) != chunks - 1:
        raise ConfigError(
            f"{len(cuts)} cuts make {len(cuts) + 1} chunks, but {ranks} stages x {virtual_stages} virtual stages need "
            f"{chunks}: give {chunks - 1} cuts"
        )
    outside = [cut for cut in cuts if not 0 < cut < branches]
    if outside:
        raise ConfigError(
            f"cuts are numbers of branches from 1 to {branches - 1}, and {outside[0]} is not: a stage would be empty"
        )
    bounds = (0, *cuts, branches)
    for chunk, (first, last) in enumerate(pairwise(bounds)):
        if last <= first:
            raise ConfigError(
                f"the cuts {list(cuts)} leave chunk {chunk} empty (from branch {first} to {last}): "
                "cuts count branches from the start, each larger than the one before"
            )
    return tuple(cuts)
