"""The stream of Attention Residuals: sources over depth, read plainly (`reference`) or in two phases (`fast`).

Fast reads look ahead. When a block of reads opens, one batched pass gives for each of its queries the read over all
closed sources; each read then only merges what the block itself has added. In Block that is one running sum. In Full it
is one source per read, so the reads are scheduled in blocks of about `AHEAD`, at the end of which the new sources are seen by
all later queries at once (on a GPU they move into one tensor). The results are those of the reference, term by term.

All that was computed ahead travels in the stream (streams are values), and is rebuilt from the sources where it is
missing, so a stage or a checkpoint may start anywhere with `Sources(closed, partial)`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normlab.errors import InputError
from normlab.schemes.base import GPT2, Branch, Frame, Parts, Scheme, Site
from normlab.schemes.depth_attention import DepthAttentionConfig, lookup_row
from normlab.schemes.depth_kernels import usable
from normlab.schemes.depth_reads import Norm, Query, attend, full_precision, gather_for, keys, merge, mix
from normlab.schemes.norms import RMSNorm, Scale, inverse_rms, precise, watched
from normlab.schemes.ops.gather import Gather, Gathers
from normlab.schemes.placement import Placement, PlacementConfig

AHEAD = 8  # reads of Full that are computed together


class Ahead(NamedTuple):
    """What fast reads have computed beforehand. A unit is a closed source [tokens, d] or several [tokens, n, d]."""

    table: Tensor  # w * gain of every read, [reads, d]
    queries: tuple[Tensor, ...]  # its rows
    units: tuple[Tensor, ...]
    gathers: Gathers  # where the gradient of each unit is added up, if it is
    logits: tuple[tuple[Tensor, ...], ...]  # of each unit, for the reads of each block that has not ended
    inner: tuple[Inner, ...] = ()  # the sources that this block added (Full)
    outputs: tuple[Tensor, ...] = ()  # of the reads of this block that are still to come, over the units
    lse: tuple[Tensor, ...] = ()
    weights: tuple[Tensor, ...] = ()


class Inner(NamedTuple):
    """A source [tokens, d] that a block of Full has added."""

    source: Tensor
    here: tuple[Tensor, ...]  # its logits [tokens] for the reads of this block that were to come
    later: Tensor  # [tokens, reads of later blocks]
    gather: Gather | None


class Sources(NamedTuple):
    """The stream: closed sources, the running sum of the open block (None right after a boundary), what is known ahead.

    `Sources(closed, partial)` is complete; the rest follows from it.
    """

    closed: tuple[Tensor, ...]
    partial: Tensor | None = None
    ahead: Ahead | None = None

    @property
    def all(self) -> tuple[Tensor, ...]:
        return self.closed if self.partial is None else (*self.closed, self.partial)


class FastRead(NamedTuple):
    """What a fast read leaves for its write: the stream that it read, and how that goes on."""

    before: Sources
    after: Sources


class Kept(NamedTuple):
    """What a row needs for its write beside what is known ahead: the read, and the skip if it is not the read."""

    seen: FastRead | None
    h: Tensor
    skip: Any


class Placed(Placement):
    """A row of the placement family around the branches of Attention Residuals."""

    def __init__(self, config: PlacementConfig, frame: Frame, scales: list[float]) -> None:
        self.scales = scales
        super().__init__(config, frame)
        self.final = nn.Identity()  # the output's read has its own

    def input_scales(self) -> list[float]:
        return self.scales

    def added(self, y: Tensor, kept: Kept, site: Site) -> Tensor:
        """T(h) - h; where T only adds, what it adds."""
        if self.is_linear and self.a.identity and self.gate is None and self.skip_shift is None:
            return self.leave(y, site)
        return self.write(kept.h, y, kept.skip, site) - kept.h


# Placements that are norms around the branch and nothing else.
AROUND = {"pre_norm": "pre", "res_norm": "res", "peri_norm": "both"}


class DepthAttention(Scheme):
    """h = sum_i alpha_i v_i, alpha = softmax_i( w . RMSNorm(v_i) )"""

    config: DepthAttentionConfig

    def __init__(self, config: DepthAttentionConfig, frame: Frame) -> None:
        around = AROUND.get(config.inner)
        super().__init__(config, frame, pre=around in ("pre", "both"), res=around in ("res", "both"))
        # Rows beyond these three bring their norms, scales and gates with them.
        self.placed = None if around else Placed(lookup_row(config.inner), frame, self.input_scales())
        branches, d = len(frame.sites), frame.dim
        sizes = config.block_sizes(branches)
        self.ends = {end - 1 for end in accumulate(sizes)}
        reads = branches + config.output_read
        self.single = max(sizes) == 1  # every source is one branch: Full, however it is spelled
        self.schedule = _schedule(sizes, reads, self.single)
        self.block_of = [block for block in self.schedule for _ in range(*block)]
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

    def init_branch_(self, branch: Branch, site: Site) -> None:
        """As GPT-2, or as the row around the branches begins."""
        if self.placed is None:
            GPT2.fill_(branch, site, options=self.config, frame=self.frame)
        else:
            self.placed.init_branch_(branch, site)

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
        return Sources((self._source(x if self.placed is None else self.placed.open(x)),))

    def read(self, stream: Sources, site: Site) -> tuple[Tensor, Any]:
        norm = self._norm_after(stream, site)
        h, seen = self._attend(stream, site.index, norm)
        x = h if norm is not None or self._summed else self.enter(h, site)
        if self.placed is None:
            return x, seen
        x, skip = self.placed.read(x, site)
        return x, Kept(seen, h, skip)

    def write(self, stream: Sources, y: Tensor, carry: Any, site: Site) -> Sources:
        if isinstance(carry, Kept):
            assert self.placed is not None
            y, carry = self.placed.added(y, carry, site), carry.seen
        v = self.leave(y, site).to(stream.closed[0].dtype)  # under autocast a branch may answer in half precision
        if v.shape != stream.closed[0].shape:
            shapes = f"{list(v.shape)}, but the stream holds sources of {list(stream.closed[0].shape)}"
            raise InputError(f"branch {site.index} gave {shapes}: a branch answers in the shape that it was given")
        # What was read ahead belongs to the stream that was read, and to no other.
        closed, before, ahead = carry.after if carry is not None and same(carry.before, stream) else (*stream[:2], None)
        partial = v if before is None else before + v
        if site.index not in self.ends:
            return Sources(closed, partial, ahead)
        if ahead is None:
            return Sources((*closed, partial))
        with full_precision(partial.device):
            return self._closed((*closed, partial), ahead, site.index + 1)

    def close(self, stream: Sources) -> Tensor:
        if self.config.output_read:
            h, _ = self._attend(stream, len(self.frame.sites))
            if self._summed:
                return h
        else:
            h = sum_all(stream.all)
        return self.final(self._read(h))

    # -- the stream across devices (a pipeline stage) ------------------------------------------------------------------
    # `settled` is the tuple of closed sources in order, each [..., d]; `moving` is the open block's sum, or nothing right
    # after a boundary. What was computed ahead stays out: the next read computes it again for the block it lies in.
    def to_parts(self, stream: Sources) -> Parts:
        return Parts(stream.closed, () if stream.partial is None else (stream.partial,))

    def from_parts(self, parts: Parts, like: Sources, site: Site | None) -> Sources:
        return Sources(parts.settled, parts.moving[0] if parts.moving else None)

    # -- one read, either way ----------------------------------------------------------------------------------------
    def _attend(self, stream: Sources, read: int, norm: Norm | None = None) -> tuple[Tensor, FastRead | None]:
        """h of one read, or its norm, and how the stream goes on."""
        if not self._fast:
            return self.attend(stream.all, read), None
        with full_precision(stream.closed[0].device):
            h, after = self._attend_ahead(stream, read, norm)
        return h, FastRead(stream, after)

    @property
    def _fast(self) -> bool:
        return self.config.reads_fast and self._tape is None

    @property
    def _summed(self) -> bool:
        """Does a read of Full take its `Scale` along? In a swapped model h is as large as the sum of its sources.

        Weights of equal logits are then 1, and the additions those of the plain stream: at the start the same numbers.
        """
        return self.single and type(self.final) is Scale and self._fast and self.enters_itself

    def _norm_after(self, stream: Sources, site: Site) -> Norm | None:
        """The branch's norm, if the read may take it along: a plain RMSNorm, and nobody who looks in between."""
        norm = self.pre[site.index]
        if type(norm) is not RMSNorm or not self._fast or torch.compiler.is_compiling() or watched(norm):
            return None
        if not self.enters_itself or norm.weight.dtype != stream.closed[0].dtype:
            return None
        return Norm(norm.weight, norm.eps)

    # -- the reference -----------------------------------------------------------------------------------------------
    def attend(self, sources: tuple[Tensor, ...], read: int) -> Tensor:
        """Every source is stacked and normalised again at every read."""
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

    # -- two phases --------------------------------------------------------------------------------------------------
    @property
    def _eps(self) -> float | None:
        return self.config.key_eps if self.config.key_norm else None

    def _attend_ahead(self, stream: Sources, read: int, norm: Norm | None) -> tuple[Tensor, Sources]:
        first, end = self.block_of[read]
        closed, partial, shape = stream.closed, stream.partial, stream.closed[0].shape
        ahead = stream.ahead or self._look_back(stream, first, read)
        if not ahead.outputs:
            ahead = self._look_ahead(ahead)
        offset = read - end  # outputs are counted from the block's end
        o, lse = ahead.outputs[offset], ahead.lse[offset]
        if ahead.inner:
            logits = [lse, *(inner.here[offset] for inner in ahead.inner)]
            summed = len(closed) - len(ahead.inner) if self._summed else 0
            known, gathers = [inner.source for inner in ahead.inner], [inner.gather for inner in ahead.inner]
            h, sources = attend(logits, [o, *known], norm=norm, summed=summed, gathers=gathers)
            inner = tuple(one._replace(source=v) for one, v in zip(ahead.inner, sources, strict=True))
            ahead = ahead._replace(inner=inner)
        elif partial is not None:
            rebuild = (ahead.weights[offset], *ahead.units) if ahead.weights else ()
            query = Query(ahead.queries[read], self._eps)
            h, b = merge(o, lse, _flat(partial), query, norm=norm, rebuild=rebuild)
            partial = b.view(shape)
        else:
            h = o if norm is None else norm.of(o)
        return h.view(shape), Sources(closed, partial, ahead)

    def _look_back(self, stream: Sources, first: int, read: int) -> Ahead:
        """From the sources alone: keys of what was closed before this block, and of what it has added (Full)."""
        dtype = precise(stream.closed[0]).dtype
        queries = self.queries.to(dtype)
        if self.config.key_norm:
            queries = queries * self.key_gain.to(dtype)
        ahead = Ahead(queries, queries.unbind(0), (), (), ())
        if not self.single:
            for source in stream.closed:
                ahead = self._with_unit(ahead, _flat(source), read)
            return ahead
        before = first + 1  # read l of Full sees l + 1 sources
        ahead = self._with_unit(ahead, _unit([_flat(v) for v in stream.closed[:before]]), read)
        for source in stream.closed[before:]:
            ahead = self._with_inner(ahead, source, read)
        return ahead

    def _with_unit(self, ahead: Ahead, unit: Tensor, read: int) -> Ahead:
        """One more unit, with its keys for all reads from `read` on."""
        flat = unit.reshape(-1, unit.shape[-1])
        gather = gather_for(flat) if unit.dim() == 2 else None
        logits, rows = keys(flat, ahead.table[read:], self._eps, gather)
        sources = unit.shape[1] if unit.dim() == 3 else 1
        logits = logits.view(unit.shape[0], sources, logits.shape[-1])  # [tokens, sources, reads]
        rows = rows if unit.dim() == 2 else rows.view(unit.shape)
        return self._with_logits(ahead._replace(gathers=(*ahead.gathers, gather)), (rows,), logits, read)

    def _with_logits(self, ahead: Ahead, units: tuple[Tensor, ...], logits: Tensor, read: int) -> Ahead:
        """More units, with their logits for all reads from `read` on, split by block."""
        sizes = [end - max(first, read) for first, end in self.schedule if end > read]
        return ahead._replace(
            units=(*ahead.units, *units), logits=(*ahead.logits, logits.split(sizes, dim=-1)), outputs=(), inner=()
        )

    def _with_inner(self, ahead: Ahead, source: Tensor, read: int) -> Ahead:
        """One more source inside a block of Full, with its keys for all reads from `read` on."""
        _, end = self.block_of[read]
        flat = _flat(source)
        gather = gather_for(flat)
        logits, source = keys(flat, ahead.table[read:], self._eps, gather)
        here, later = logits.split([end - read, logits.shape[1] - (end - read)], dim=1)
        return ahead._replace(inner=(*ahead.inner, Inner(source, here.unbind(1), later, gather)))

    def _look_ahead(self, ahead: Ahead) -> Ahead:
        """Phase one: every read of the block that is left, over all units."""
        logits = torch.cat([blocks[0] for blocks in ahead.logits], dim=1)
        rest = tuple(blocks[1:] for blocks in ahead.logits)
        if logits.shape[1] == 1:  # one source: its weight is one
            outputs = ahead.units * logits.shape[2]
            return ahead._replace(logits=rest, outputs=outputs, lse=logits[:, 0].unbind(1), weights=())
        lse, weights, outputs, units = mix(logits, ahead.units, summed=self._summed, gathers=ahead.gathers)
        kept = weights.unbind(2) if self.config.recompute else ()
        return ahead._replace(units=units, logits=rest, outputs=outputs, lse=lse.unbind(1), weights=kept)

    def _closed(self, closed: tuple[Tensor, ...], ahead: Ahead, read: int) -> Sources:
        """A source has closed, and `read` is next: show it to the reads to come."""
        if read == self.schedule[-1][1]:  # nobody reads on
            return Sources(closed)
        if not self.single:
            return Sources(closed, None, self._with_unit(ahead, _flat(closed[-1]), read))
        if not any(first == read for first, _ in self.schedule):
            return Sources(closed, None, self._with_inner(ahead, closed[-1], read))
        flat = _flat(closed[-1])
        gather = gather_for(flat)
        logits, last = keys(flat, ahead.table[read:], self._eps, gather)
        later = torch.stack([*(inner.later for inner in ahead.inner), logits], dim=1)
        known = len(closed) - len(ahead.inner) - 1
        sources = [*(inner.source for inner in ahead.inner), last]
        gathers: Gathers = (*(inner.gather for inner in ahead.inner), gather)
        units = tuple(sources)  # C reads them where they lie
        if usable(*sources) is None:
            # The sources are views of their unit from here on: nothing is held twice.
            unit = _unit(sources)
            units, sources, gathers = (unit,), [*unit.unbind(1)] if unit.dim() == 3 else [unit], (None,)
        views = [v.view_as(closed[0]) for v in sources]
        ahead = ahead._replace(gathers=(*ahead.gathers, *gathers))
        return Sources((*closed[:known], *views), None, self._with_logits(ahead, units, later, read))


def same(one: Sources, other: Sources) -> bool:
    """The same tensors, not equal ones."""
    pairs = zip(one.all, other.all, strict=False)
    return one is other or (len(one.all) == len(other.all) and all(a is b for a, b in pairs))


def _schedule(sizes: list[int], reads: int, single: bool) -> list[tuple[int, int]]:
    """First read and end of each block of reads. The output's read is a block of its own, or in Full the last read."""
    if single:
        starts = [*range(0, reads, AHEAD)]
        if len(starts) > 1 and reads - starts[-1] < AHEAD // 2:  # a pass over all sources for so few reads does not pay
            starts.pop()
    else:
        starts = [0, *accumulate(sizes)][: len(sizes) + (reads > sum(sizes))]
    return list(zip(starts, [*starts[1:], reads], strict=True))


def _flat(source: Tensor) -> Tensor:
    return source.reshape(-1, source.shape[-1])


def _unit(sources: list[Tensor]) -> Tensor:
    return sources[0] if len(sources) == 1 else torch.stack(sources, dim=1)


def sum_all(sources: tuple[Tensor, ...]) -> Tensor:
    total = sources[0]
    for source in sources[1:]:
        total = total + source
    return total
