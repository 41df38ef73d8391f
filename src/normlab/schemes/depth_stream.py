"""The stream of Attention Residuals: sources over depth, read plainly (`reference`) or in two phases (`fast`).

Fast reads look ahead. When a block of reads opens, one batched pass gives for each of its queries the read over all
closed sources; each read then only merges what the block itself has added. In Block that is one running sum. In Full it
is one source per read, so the reads are scheduled in blocks of `AHEAD`, at the end of which the new sources move into
one tensor and are seen by all later queries at once. The results are those of the reference, term by term.

All that was computed ahead travels in the stream (streams are values), and is rebuilt from the sources where it is
missing, so a stage or a checkpoint may start anywhere with `Sources(closed, partial)`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normlab.errors import InputError
from normlab.schemes import depth_kernels
from normlab.schemes.base import GPT2, Frame, Parts, Scheme, Site
from normlab.schemes.depth_attention import DepthAttentionConfig
from normlab.schemes.depth_buffers import Basket, Shelf, shelve
from normlab.schemes.depth_reads import full_precision, keys, merge, mix, plain
from normlab.schemes.norms import inverse_rms, precise

AHEAD = 8  # reads of Full that are computed together


class Ahead(NamedTuple):
    """What fast reads have computed beforehand. A unit is a closed source [tokens, d] or several [tokens, n, d]."""

    table: Tensor  # w * gain of every read, [reads, d]
    queries: tuple[Tensor, ...]  # its rows
    units: tuple[Tensor, ...]
    logits: tuple[tuple[Tensor, ...], ...]  # of each unit, for the reads of each block that has not ended
    inner: tuple[Tensor, ...] = ()  # logits of the sources that this block added (Full)
    outputs: tuple[Tensor, ...] = ()  # of the reads of this block that are still to come, over the units
    lse: tuple[Tensor, ...] = ()
    weights: tuple[Tensor, ...] = ()
    basket: Basket | None = None  # for the gradients of `outputs`
    shelf: Shelf | None = None  # for the sources to come (Block)


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


class DepthAttention(Scheme):
    """h = sum_i alpha_i v_i, alpha = softmax_i( w . RMSNorm(v_i) )"""

    config: DepthAttentionConfig
    init = GPT2

    def __init__(self, config: DepthAttentionConfig, frame: Frame) -> None:
        super().__init__(config, frame, pre=config.inner != "res_norm", res=config.inner != "pre_norm")
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

    def read(self, stream: Sources, site: Site) -> tuple[Tensor, Ahead | None]:
        h, ahead = self._attend(stream, site.index)
        return self.enter(h, site), ahead

    def write(self, stream: Sources, y: Tensor, carry: Ahead | None, site: Site) -> Sources:
        v = self.leave(y, site).to(stream.closed[0].dtype)  # under autocast a branch may answer in half precision
        if v.shape != stream.closed[0].shape:
            shapes = f"{list(v.shape)}, but the stream holds sources of {list(stream.closed[0].shape)}"
            raise InputError(f"branch {site.index} gave {shapes}: a branch answers in the shape that it was given")
        ends = site.index in self.ends
        if ends and carry is not None and carry.shelf is not None:
            first, second = (v, None) if stream.partial is None else (_flat(stream.partial), _flat(v))
            partial = shelve(_flat(first), second, carry.shelf, len(stream.closed)).view(v.shape)
        else:
            partial = v if stream.partial is None else stream.partial + v
        if not ends:
            return Sources(stream.closed, partial, carry)
        closed = (*stream.closed, partial)
        if carry is None:
            return Sources(closed)
        with full_precision(partial.device):
            return self._closed(closed, carry, site.index + 1)

    def close(self, stream: Sources) -> Tensor:
        if self.config.output_read:
            h, _ = self._attend(stream, len(self.frame.sites))
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
    def _attend(self, stream: Sources, read: int) -> tuple[Tensor, Ahead | None]:
        """h of one read, and what is known ahead of the next ones."""
        if not self.config.reads_fast or self._tape is not None:
            return self.attend(stream.all, read), None
        with full_precision(stream.closed[0].device):
            return self._attend_ahead(stream, read)

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

    def _attend_ahead(self, stream: Sources, read: int) -> tuple[Tensor, Ahead]:
        first, end = self.block_of[read]
        ahead = stream.ahead or self._look_back(stream, first, read)
        if not ahead.outputs:
            ahead = self._look_ahead(ahead)
        shape, offset = stream.closed[0].shape, read - end  # outputs are counted from the block's end
        o, lse = ahead.outputs[offset], ahead.lse[offset]
        if ahead.inner:
            added = [_flat(v) for v in stream.closed[-len(ahead.inner) :]]
            logits = torch.stack([lse, *(inner[:, offset] for inner in ahead.inner)], dim=1)
            _, _, (h,) = mix(logits[:, :, None], [o, *added])
        elif stream.partial is not None:
            rebuild = (ahead.weights[offset], *ahead.units) if self.config.recompute and ahead.weights else ()
            basket = None if ahead.basket is None else (ahead.basket, offset + ahead.basket.count)
            b = _flat(stream.partial)
            h = merge(o, lse, b, ahead.queries[read], self._eps, rebuild=rebuild, basket=basket)
        else:
            # The outputs lie in one buffer, and whoever keeps this one keeps them all.
            h = o.clone() if ahead.weights else o
        return h.reshape(shape), ahead

    def _look_back(self, stream: Sources, first: int, read: int) -> Ahead:
        """From the sources alone: keys of what was closed before this block, and of what it has added (Full)."""
        dtype = precise(stream.closed[0]).dtype
        queries = self.queries.to(dtype)
        if self.config.key_norm:
            queries = queries * self.key_gain.to(dtype)
        ahead = Ahead(queries, queries.unbind(0), (), ())
        if not self.single:
            if len(stream.closed) == 1 and self._side_by_side(stream.closed[0]):
                embedding = _flat(stream.closed[0])
                shelf = Shelf(embedding, len(self.ends) + 1)
                return self._with_unit(ahead._replace(shelf=shelf), shelve(embedding, None, shelf, 0), read)
            for source in stream.closed:
                ahead = self._with_unit(ahead, _flat(source), read)
            return ahead
        before = first + 1  # read l of Full sees l + 1 sources
        ahead = self._with_unit(ahead, _unit(stream.closed[:before]), read)
        for source in stream.closed[before:]:
            ahead = self._with_inner(ahead, source, read)
        return ahead

    def _side_by_side(self, x: Tensor) -> bool:
        """Do batched products read these sources? Compilers and kernels take them from wherever they lie."""
        return not self.single and not plain() and depth_kernels.usable(x) is None

    def _with_unit(self, ahead: Ahead, unit: Tensor, read: int) -> Ahead:
        """One more unit, with its keys for all reads from `read` on, split by block."""
        logits = keys(unit.reshape(-1, unit.shape[-1]), ahead.table[read:], self._eps)
        sources = unit.shape[1] if unit.dim() == 3 else 1
        logits = logits.view(unit.shape[0], sources, logits.shape[-1])  # [tokens, sources, reads]
        sizes = [end - max(first, read) for first, end in self.schedule if end > read]
        return ahead._replace(
            units=(*ahead.units, unit), logits=(*ahead.logits, logits.split(sizes, dim=-1)), outputs=(), inner=()
        )

    def _with_inner(self, ahead: Ahead, source: Tensor, read: int) -> Ahead:
        """One more source inside a block of Full, with its keys for the block's reads from `read` on."""
        _, end = self.block_of[read]
        logits = keys(_flat(source), ahead.table[read:end], self._eps)
        return ahead._replace(inner=(*ahead.inner, logits))

    def _look_ahead(self, ahead: Ahead) -> Ahead:
        """Phase one: every read of the block that is left, over all units."""
        logits = torch.cat([blocks[0] for blocks in ahead.logits], dim=1)
        rest = tuple(blocks[1:] for blocks in ahead.logits)
        if logits.shape[1] == 1:  # one source: its weight is one
            outputs = ahead.units * logits.shape[2]
            return ahead._replace(logits=rest, outputs=outputs, lse=logits[:, 0].unbind(1), weights=(), basket=None)
        basket = Basket(logits.shape[2]) if self._side_by_side(ahead.units[0]) else None
        lse, weights, outputs = mix(logits, ahead.units, basket=basket)
        kept = weights.unbind(2) if self.config.recompute else ()
        return ahead._replace(logits=rest, outputs=outputs, lse=lse.unbind(1), weights=kept, basket=basket)

    def _closed(self, closed: tuple[Tensor, ...], ahead: Ahead, read: int) -> Sources:
        """A source has closed, and `read` is next: show it to the reads to come."""
        if read == self.schedule[-1][1]:  # nobody reads on
            return Sources(closed)
        starts = any(first == read for first, _ in self.schedule)
        if not self.single:
            return Sources(closed, None, self._with_unit(ahead, _flat(closed[-1]), read))
        if not starts:
            return Sources(closed, None, self._with_inner(ahead, closed[-1], read))
        known = sum(unit.shape[1] if unit.dim() == 3 else 1 for unit in ahead.units)
        if known == 1:  # the embedding joins the first group
            known, ahead = 0, ahead._replace(units=(), logits=())
        unit = _unit(closed[known:])
        # The sources are views of their unit from here on: nothing is held twice.
        views = [v.view_as(closed[0]) for v in unit.unbind(1)]
        return Sources((*closed[:known], *views), None, self._with_unit(ahead, unit, read))


def _schedule(sizes: list[int], reads: int, single: bool) -> list[tuple[int, int]]:
    """First read and end of each block of reads. The output's read is a block of its own, or in Full the last read."""
    if single:
        starts = [*range(0, reads, AHEAD)]
    else:
        starts = [0, *accumulate(sizes)][: len(sizes) + (reads > sum(sizes))]
    return list(zip(starts, [*starts[1:], reads], strict=True))


def _flat(source: Tensor) -> Tensor:
    return source.reshape(-1, source.shape[-1])


def _unit(sources: tuple[Tensor, ...]) -> Tensor:
    return _flat(sources[0]) if len(sources) == 1 else torch.stack([_flat(source) for source in sources], dim=1)


def sum_all(sources: tuple[Tensor, ...]) -> Tensor:
    total = sources[0]
    for source in sources[1:]:
        total = total + source
    return total
