"""Attention Residuals: softmax attention over depth, full and block, with the paper's variants.

"Layer" in the paper is ONE SUBLAYER; here a branch. Sources: v_0 the embedding, v_i the output of branch i.

    Full   h_l = sum_{i<l} softmax_i( w_l . RMSNorm(v_i) ) v_i
    Block  the same over b_0 = embedding, the sums of closed blocks of S branches, and the open block's running sum

Values are raw, keys normalised; one query per read, zero at the start, and one more read for the output. No 1/sqrt(d).
Nothing is carried across decoding steps: the sources are one token's depth history inside one forward pass.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from normlab.errors import ConfigError
from normlab.schemes.base import Card, Frame, Scheme, SchemeConfig, Site
from normlab.schemes.norms import inverse_rms, precise
from normlab.schemes.rows import GPT2

_TRAPS = (
    "the output is one more read, with its own query, before the final norm",
    "queries start at zero; the first read has one source, so its query never gets a gradient",
    "block sizes count branches (attention or FFN), not layers, and may be odd",
)


class DepthAttentionConfig(SchemeConfig):
    """Options that full and block share."""

    mixing: Literal["softmax", "sigmoid", "static"] = Field(
        "softmax", description="weights over the sources: softmax, sigmoid, or learned constants without keys"
    )
    query: Literal["static", "input"] = Field(
        "static", description="a learned vector, or a d x d projection (zero at the start) of the newest source's key"
    )
    heads: int = Field(1, ge=1, description="channel groups with their own weights over depth")
    key_norm: bool = Field(True, description="RMSNorm with a gain on the keys")
    key_eps: float = Field(1e-6, ge=0)
    window: int | None = Field(None, ge=1, description="read the embedding and this many newest sources only")
    output_read: bool = Field(True, description="the head reads with its own query; else the plain sum of all sources")
    inner: Literal["pre_norm", "peri_norm", "res_norm"] = Field("pre_norm", description="norms around each branch")

    @model_validator(mode="after")
    def _possible(self) -> DepthAttentionConfig:
        if self.mixing == "static" and (self.query == "input" or self.heads > 1):
            raise ValueError("mixing='static' has no queries: it does not combine with query='input' or several heads")
        return self

    def build(self, frame: Frame) -> DepthAttention:
        if frame.dim % self.heads:
            raise ConfigError(f"scheme.heads: {self.heads} depth heads do not divide the width {frame.dim}")
        return DepthAttention(self, frame)

    def block_sizes(self, branches: int) -> list[int]:
        """Branches per block, in order; they sum to `branches`."""
        return [1] * branches

    def source_counts(self, branches: int) -> list[int]:
        """How many sources each read sees; the last entry is the output's read."""
        counts, closed, partial = [], 1, 0
        for size in self.block_sizes(branches):
            for _ in range(size):
                counts.append(closed + (partial > 0))
                partial += 1
            closed, partial = closed + 1, 0
        counts.append(closed)
        return [n if self.window is None else min(n, 1 + self.window) for n in counts]

    def initial_weights(self, branches: int) -> list[float]:
        """The weight that every source has at the start, for each read."""
        weights = [0.5 if self.mixing == "sigmoid" else 1 / n for n in self.source_counts(branches)]
        return weights if self.output_read else [*weights[:-1], 1.0]

    def growth(self, frame: Frame) -> list[Any]:
        branches = len(frame.sites)
        if self.window is not None:
            return [None] * (branches + 1)
        return [(1 + i) * weight**2 for i, weight in enumerate(self.initial_weights(branches))]

    def neutral(self) -> DepthAttentionConfig:
        return type(self)()  # type: ignore[call-arg]  # the subclasses have a default name

    def zero_gradients(self, frame: Frame) -> dict[str, tuple[int, ...]]:
        if self.mixing != "softmax":
            return {}
        names = ["project" if self.query == "input" else "queries", *(["key_gain"] if self.key_norm else [])]
        return dict.fromkeys(names, (0,))


class AttnRes(DepthAttentionConfig):
    """h_l = sum_i softmax_i( w_l . RMSNorm(v_i) ) v_i over all earlier branches and the embedding"""

    card = Card(
        family="depth sources",
        equation="h_l = sum_{i<l} softmax_i( w_l . RMSNorm(v_i) ) v_i; v_l = F(N(h_l)); output one more read",
        citation="Kimi Team 2026, Attention Residuals, arXiv 2603.15031 (Full)",
        growth="1/(1+i) at the start: a mean of independent sources",
        init="queries 0, key gains 1; branches as GPT-2",
        extra_parameters="(M+1)*N+2*(M+1)*d",
        traffic="24d in the paper's two-phase count (L = 128), reads and writes",
        traps=_TRAPS,
        parent="pre_norm",
    )
    name: Literal["attn_res"] = "attn_res"


class BlockAttnRes(DepthAttentionConfig):
    """h_l = attention over the embedding, the sums of closed blocks, and the running sum of the open block"""

    card = Card(
        family="depth sources",
        equation="h_l = sum_n softmax_n( w_l . RMSNorm(b_n) ) b_n; b_0 embedding, b_n sums of S branches",
        citation="Kimi Team 2026, Attention Residuals, arXiv 2603.15031 (Block)",
        growth="bounded and periodic: (1+i)/(number of sources)^2 at the start",
        init="queries 0, key gains 1; branches as GPT-2",
        extra_parameters="(M+1)*N+2*(M+1)*d",
        traffic="(N/S+5)d = 5.5d for 128 branches in 8 blocks, reads and writes (the paper's count)",
        traps=(
            *_TRAPS,
            "blocks: N gives S = floor(M/N) branches a block, and the M mod N that remain are one extra block; it is "
            "longer than S where M mod N > S, a case the paper does not discuss (block_size: S never does that)",
        ),
        parent="pre_norm",
    )
    name: Literal["block_attn_res"] = "block_attn_res"
    blocks: int | None = Field(None, ge=1, description="N, number of blocks without the embedding; default 8, or fewer")
    block_size: int | None = Field(None, ge=1, description="S, branches (not layers) per block; the last may be short")

    @model_validator(mode="after")
    def _one_of(self) -> BlockAttnRes:
        if self.blocks is not None and self.block_size is not None:
            raise ValueError("give blocks or block_size, not both: each determines the other")
        return self

    def check(self, sites: Any) -> None:
        for key, value in (("blocks", self.blocks), ("block_size", self.block_size)):
            if value is not None and value > len(sites):
                raise ConfigError(
                    f"scheme.{key}: {value} is more than the model's {len(sites)} branches "
                    f"(a branch is an attention or an FFN); give {len(sites)} or less"
                )

    def block_sizes(self, branches: int) -> list[int]:
        if self.block_size is not None:
            size, count = self.block_size, branches // self.block_size
            rest = branches % size
        else:
            count = self.blocks or min(8, branches)
            size, rest = branches // count, branches % count
        return [size] * count + ([rest] if rest else [])


class Sources(NamedTuple):
    """The stream: closed sources, and the running sum of the open block (None right after a boundary)."""

    closed: tuple[Tensor, ...]
    partial: Tensor | None = None

    @property
    def all(self) -> tuple[Tensor, ...]:
        return self.closed if self.partial is None else (*self.closed, self.partial)


class DepthAttention(Scheme):
    """h = sum_i alpha_i v_i, alpha = softmax_i( w . RMSNorm(v_i) )"""

    config: DepthAttentionConfig

    def __init__(self, config: DepthAttentionConfig, frame: Frame) -> None:
        super().__init__(config, frame, pre=config.inner != "res_norm", res=config.inner != "pre_norm")
        branches, d = len(frame.sites), frame.dim
        sizes = config.block_sizes(branches)
        self.ends = {sum(sizes[: k + 1]) - 1 for k in range(len(sizes))}
        reads = branches + config.output_read
        if config.mixing == "static":
            self.weights = nn.ParameterList(torch.empty(n) for n in config.source_counts(branches)[:reads])
        else:
            # One tensor for all reads: the first read's query has no gradient (its softmax has one entry), and a
            # parameter of its own would trip DDP's check for unused parameters.
            if config.query == "static":
                self.queries = nn.Parameter(torch.empty(reads, d))
            else:
                self.project = nn.Parameter(torch.empty(reads, d, d))
            if config.key_norm:
                self.key_gain = nn.Parameter(torch.empty(reads, d))
        self.final = frame.new_norm(eps=frame.eps * self.input_scales()[-1] ** 2)
        self.reset_parameters()

    def input_scales(self) -> list[float]:
        return self.config.initial_weights(len(self.frame.sites))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.config.mixing == "static":
            for weights in self.weights:
                weights.fill_(1 / len(weights))
            return
        (self.queries if self.config.query == "static" else self.project).zero_()
        if self.config.key_norm:
            self.key_gain.fill_(1.0)

    # -- the verbs -------------------------------------------------------------------------------------------------
    def open(self, x: Tensor) -> Sources:
        return Sources((self._source(x),))

    def read(self, stream: Sources, site: Site) -> tuple[Tensor, None]:
        return self.enter(self.attend(stream.all, site.index), site), None

    def write(self, stream: Sources, y: Tensor, carry: None, site: Site) -> Sources:
        v = self.leave(y, site)
        partial = v if stream.partial is None else stream.partial + v
        return Sources((*stream.closed, partial)) if site.index in self.ends else Sources(stream.closed, partial)

    def close(self, stream: Sources) -> Tensor:
        h = self.attend(stream.all, len(self.frame.sites)) if self.config.output_read else sum_all(stream.all)
        return self.final(self._read(h))

    # -- the read ----------------------------------------------------------------------------------------------------
    def attend(self, sources: tuple[Tensor, ...], read: int) -> Tensor:
        """The plain reference: every source is normalised again at every read."""
        window = self.config.window
        if window is not None and len(sources) > window + 1:
            sources = (sources[0], *sources[-window:])
        values = torch.stack(sources)
        if self.config.mixing == "static":
            alpha = self.weights[read].view(-1, *[1] * (values.dim() - 1))
            return (self.weigh(alpha).to(values.dtype) * values).sum(0)
        logits = self.logits(values, read)
        alpha = torch.softmax(logits, dim=0) if self.config.mixing == "softmax" else torch.sigmoid(logits)
        grouped = values.unflatten(-1, (self.config.heads, -1))
        return (self.weigh(alpha).to(values.dtype)[..., None] * grouped).sum(0).flatten(-2)

    def logits(self, values: Tensor, read: int) -> Tensor:
        """w . RMSNorm(v) per source, token and head, in float32 or better: [sources, ..., heads]."""
        keys = precise(values)
        if self.config.key_norm:
            keys = keys * inverse_rms(keys, self.config.key_eps) * self.key_gain[read].to(keys.dtype)
        query = self.queries[read] if self.config.query == "static" else keys[-1] @ self.project[read].to(keys.dtype).T
        return (keys * query.to(keys.dtype)).unflatten(-1, (self.config.heads, -1)).sum(-1)

    def init_branch_(self, branch: Any, site: Site) -> None:
        GPT2.fill_(branch, site, options=self.config, std=self.frame.init_std)


def sum_all(sources: tuple[Tensor, ...]) -> Tensor:
    total = sources[0]
    for source in sources[1:]:
        total = total + source
    return total
