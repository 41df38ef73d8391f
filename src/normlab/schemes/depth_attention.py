"""Attention Residuals: softmax attention over depth, full and block, with the paper's variants.

"Layer" in the paper is ONE SUBLAYER; here a branch. Sources: v_0 the embedding, v_i the output of branch i.

    Full   h_l = sum_{i<l} softmax_i( w_l . RMSNorm(v_i) ) v_i
    Block  the same over b_0 = embedding, the sums of closed blocks of S branches, and the open block's running sum

The norms around a branch are a row of the placement family, x <- T(x): its source is v = T(h) - h. With every weight 1
that is the row's own network, so AttnRes combines with all of them; for Pre-Norm v is F(N(h)), as in the paper.

Values are raw, keys normalised; one query per read, zero at the start, and one more read for the output. No 1/sqrt(d).
Nothing is carried across decoding steps: the sources are one token's depth history inside one forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from normlab.errors import ConfigError, unknown
from normlab.schemes.base import Access, Card, Demands, Frame, Growth, SchemeConfig, Site
from normlab.schemes.placement import PlacementConfig, PlacementRow
from normlab.schemes.rows import CONFIGS as ROW_CONFIGS
from normlab.schemes.rows import ROWS

if TYPE_CHECKING:
    from normlab.schemes.depth_stream import DepthAttention

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
    inner: str = Field(
        "pre_norm", description="norms around each branch: a row of the placement family; v = row(h) - h is the source"
    )
    read: Literal["fast", "reference"] = Field(
        "fast",
        description="two phases where the options allow it, or the plain formula (twice differentiable)",
    )
    recompute: bool = Field(False, description="fast reads keep one vector less per read, and form it again backwards")

    @model_validator(mode="after")
    def _possible(self) -> DepthAttentionConfig:
        if self.mixing == "static" and (self.query == "input" or self.heads > 1):
            raise ValueError("mixing='static' has no queries: it does not combine with query='input' or several heads")
        if self.inner not in ROWS:
            raise ValueError(f"inner: {_no_row(self.inner)}")
        return self

    @property
    def row(self) -> PlacementRow:
        return ROWS[self.inner][0]

    @property
    def scale_free(self) -> bool:
        """Does the row read through a norm alone? Then a mean of sources is as good as their sum."""
        return self.row.pre is True and self.row.out is False and self.row.keep_normed is False

    def demands(self) -> Demands:
        return self.row.demands

    def build(self, frame: Frame) -> DepthAttention:
        if frame.dim % self.heads:
            raise ConfigError(f"scheme.heads: {self.heads} depth heads do not divide the width {frame.dim}")
        from normlab.schemes.depth_stream import DepthAttention

        return DepthAttention(self, frame)

    @property
    def reads_fast(self) -> bool:
        """Two-phase reads exist for the paper's own form: softmax over all sources, one static query, one head."""
        plain = self.mixing == "softmax" and self.query == "static" and self.heads == 1 and self.window is None
        return plain and self.read == "fast"

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

    def growth(self, frame: Frame) -> Growth:
        """The mean square of h: of its sources, which are independent, together, times their weight squared."""
        branches = len(frame.sites)
        if self.window is not None or not (self.scale_free or self.inner == "res_norm"):
            return [None] * (branches + 1)
        added = [row_growth(self, site) for site in frame.sites]
        totals = [1.0, *accumulate(added, initial=1.0)][1:]
        return [total * weight**2 for total, weight in zip(totals, self.initial_weights(branches), strict=True)]

    def mixing_flops(self, frame: Frame) -> float:
        """A score and a weighted addition per read and source (2d each), and the d x d products of input queries."""
        reads = self.source_counts(len(frame.sites))[: len(frame.sites) + self.output_read]
        projected = 2.0 * frame.dim**2 * len(reads) if self.query == "input" else 0.0
        return (2.0 if self.mixing == "static" else 4.0) * frame.dim * sum(reads) + projected

    def one_phase(self, sites: Sequence[Site]) -> list[Access]:
        """Every read passes over its sources, keys and values: where queries are not known before the block starts."""
        counts = self.source_counts(len(sites))[:-1]
        passes = 1.0 if self.mixing == "static" else 2.0
        return [Access("read of the sources", passes * sum(counts) / len(counts), 1.0)]

    def neutral(self) -> DepthAttentionConfig | None:
        # A window drops sources, and branches that see the raw stream feel that a mean is smaller than a sum.
        return self if self.window is None and self.scale_free else None

    def parent(self) -> str | None:
        return self.inner

    def zero_gradients(self, frame: Frame) -> dict[str, tuple[int, ...]]:
        if self.mixing != "softmax":
            return {}
        names = ["project" if self.query == "input" else "queries", *(["key_gain"] if self.key_norm else [])]
        return dict.fromkeys(names, (0,))


def row_growth(config: DepthAttentionConfig, site: Site) -> float:
    """Mean square of what a branch adds under this row: the row's own law, from 0."""
    law = config.row.growth
    assert law is not None
    options = lookup_row(config.inner)
    before = 1.0
    after = law(site, before, options)
    assert not isinstance(after, tuple)
    return after - before


def lookup_row(name: str) -> PlacementConfig:
    return next(made for made in ROW_CONFIGS if made.model_fields["name"].default == name)()  # type: ignore[call-arg]


def _no_row(name: str) -> str:
    why = unknown("placement", name, ROWS)
    return f"{why}; it is a row of the single-stream family, for AttnRes replaces every other kind of stream"


class AttnRes(DepthAttentionConfig):
    """h_l = sum_i softmax_i( w_l . RMSNorm(v_i) ) v_i over all earlier branches and the embedding"""

    card = Card(
        family="depth-sources",
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

    def traffic(self, sites: Sequence[Site], *, blocks: int = 8) -> list[Access]:
        """(S + N)d for a two-phase schedule of N blocks of S branches: 24d at M = 128, N = 8 (the paper's appendix B).

        The blocks are a schedule only. Phase 1 of block n passes once over the keys and values of the (n - 1)S sources
        before it, 2(n - 1)S d, for all S queries, and writes S results; summed over n and divided by M = NS that is
        (N - 1)d read and d written. Phase 2 of the t-th branch of a block reads t - 1 keys and values: (S - 1)d on
        average, and writes d. The paper leaves the embedding and the output's read out of this count.
        """
        if self.query == "input" or self.window is not None:
            return self.one_phase(sites)
        count = len(sites)
        sizes = [len(range(count)[start :: min(blocks, count)]) for start in range(min(blocks, count))]
        passes = 1.0 if self.mixing == "static" else 2.0
        inter = sum(sum(sizes[:n]) for n in range(len(sizes))) * passes / count
        intra = sum(size * (size - 1) / 2 for size in sizes) * passes / count
        return [Access("phase 1: closed sources, batched", inter, 1.0), Access("phase 2: the open block", intra, 1.0)]


class BlockAttnRes(DepthAttentionConfig):
    """h_l = attention over the embedding, the sums of closed blocks, and the running sum of the open block"""

    card = Card(
        family="depth-sources",
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

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        """(N/S + 5)d: 5.5d at M = 128, N = 8. Phase 1 reads the closed blocks once a block for its S queries.

        Phase 2 reads the result of phase 1, the running sum and the branch's output, and writes h and the new sum.
        """
        if self.query == "input" or self.window is not None:
            return [*self.one_phase(sites), Access("running sum", 2.0, 1.0)]
        count = len(self.block_sizes(len(sites)))
        batched = count * count / len(sites)  # N/S with S = M/N
        return [Access("phase 1: closed blocks, batched", batched, 1.0), Access("phase 2: merge and sum", 3.0, 1.0)]

    def block_sizes(self, branches: int) -> list[int]:
        if self.block_size is not None:
            size, count = self.block_size, branches // self.block_size
            rest = branches % size
        else:
            count = self.blocks or min(8, branches)
            size, rest = branches // count, branches % count
        return [size] * count + ([rest] if rest else [])
