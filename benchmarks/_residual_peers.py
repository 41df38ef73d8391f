"""Residual paths of other packages, driving the same branches as ours: only the residual path differs.

A package that is missing, or that cannot run here, is reported with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from normlab import Transformer
from normlab.model.attention import Pass
from normlab.model.positions import rope_table

Build = Callable[[Transformer], nn.Module]


class Body(nn.Module):
    """Embedding, branches, norms and head of a pre_norm model of ours; subclasses say how the branches are joined."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        model: Any = self.model
        positions = torch.arange(tokens.shape[1])
        shared = Pass(rope=rope_table(positions, model.config.size_of_head, model.config.rope_theta))
        return model.logits(model.scheme.final(self.join(model.embed(tokens, positions), shared)))

    def branch(self, index: int, h: Tensor, shared: Pass) -> Tensor:
        return self.model.branches[index](self.model.scheme.pre[index](h), shared)

    def join(self, x: Tensor, shared: Pass) -> Tensor:
        raise NotImplementedError


class Pooled(Body):
    """A module per read that takes the stacked sources, as these packages do in their own models."""

    def __init__(self, model: Transformer, pool: Callable[[int], nn.Module], *, blocks: int | None) -> None:
        super().__init__(model)
        count = len(model.sites)
        self.size = 1 if blocks is None else count // blocks
        self.pools = nn.ModuleList(pool(model.config.dim) for _ in range(count + 1))

    def join(self, x: Tensor, shared: Pass) -> Tensor:
        sources, partial = [x], None
        for index in range(len(self.model.sites)):
            seen = sources if partial is None else [*sources, partial]
            y = self.branch(index, self.pools[index](torch.stack(seen)), shared)
            partial = y if partial is None else partial + y
            if (index + 1) % self.size == 0:
                sources, partial = [*sources, partial], None
        return self.pools[-1](torch.stack(sources if partial is None else [*sources, partial]))


class Connected(Body):
    """hyper-connections: `branch input, add = connection(streams)`, streams folded into the batch."""

    def __init__(self, model: Transformer, factory: Callable[..., Any], streams: int = 4) -> None:
        super().__init__(model)
        connect, self.expand, self.reduce = factory(streams, dim=model.config.dim)
        self.connections = nn.ModuleList(connect(layer_index=site.index) for site in model.sites)

    def join(self, x: Tensor, shared: Pass) -> Tensor:
        x = self.expand(x)
        for index, connection in enumerate(self.connections):
            h, add = connection(x)
            x = add(self.branch(index, h, shared))
        return self.reduce(x)


def _attn_res(blocks: int | None) -> Build:
    operator = import_module("attn_res").AttnResOperator
    return lambda model: Pooled(model, operator, blocks=blocks)


def _x_transformers() -> Build:
    pool = import_module("x_transformers.x_transformers").AttentionResidual
    # Its default rank of 64 is refused at width 64.
    return lambda model: Pooled(model, lambda dim: pool(dim, lora_rank=min(64, dim // 2)), blocks=None)


def _hyper(manifold: bool) -> Build:
    package = import_module("hyper_connections")
    prefix = "mc_" if manifold else ""
    factory = getattr(package, f"{prefix}get_init_and_expand_reduce_stream_functions")
    return lambda model: Connected(model, factory)


PEERS: dict[str, Callable[[], Build]] = {
    "attn-res, block": lambda: _attn_res(8),
    "attn-res, full": lambda: _attn_res(None),
    "x-transformers, attention residual (full, low-rank query)": _x_transformers,
    "hyper-connections": lambda: _hyper(False),
    "hyper-connections, mHC": lambda: _hyper(True),
}
NEED_CUDA = {"fast-attnres": "attnres", "flash-attn-res": "flash_attn_res"}


def find() -> tuple[dict[str, Build], dict[str, str]]:
    """What can be built, and why the rest cannot."""
    found, missing = {}, {}
    for name, load in PEERS.items():
        try:
            found[name] = load()
        except (ImportError, AttributeError) as error:
            missing[name] = f"not usable: {error}"
    if not torch.cuda.is_available():
        missing |= dict.fromkeys(NEED_CUDA, "kernels for CUDA only; no such device here")
    return found, missing
