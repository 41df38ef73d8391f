"""The single-stream family: one equation, one row of data per scheme.

    x <- out( a x + b res( F( c pre(x) ) ) )

`pre`, `res` and `out` say where a norm N stands; a, b, c are numbers, functions of the site, or learned. A new scheme
of this family is a new `PlacementRow` in rows.py. Layers are counted from 1, L is their number and M the number of branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from normlab.schemes.base import Bounds, Card, Demands, Frame, Growth, Init, Scheme, SchemeConfig, Site
from normlab.schemes.depth_reads import Norm, handed_norm
from normlab.schemes.norms import RMSNorm, traced, watched
from normlab.schemes.ops.depth import fuses

Options = Any  # the row's own config class
Switch = bool | Callable[[Site, Options], bool]
Number = float | Callable[[Site, Options], float]


@dataclass(frozen=True)
class Learned:
    """A learned coefficient: a scalar or a vector, for each branch or shared by a layer's branches."""

    shape: Literal["scalar", "vector"]
    initial: Callable[[Site, Options], float]
    shared: bool = False


@dataclass(frozen=True)
class PlacementRow:
    card: Card
    pre: Switch = False
    res: Switch = False
    out: Switch = False
    a: Number | Learned = 1.0
    b: Number | Learned = 1.0
    c: Number = 1.0
    keep_normed: Switch = False  # the skip path takes N(x), not x (HybridNorm's FFN)
    embedding: bool = False
    final: bool = False
    init: Init = field(default_factory=Init)
    demands: Demands = field(default_factory=Demands)
    gate: bool = False  # GPAS
    shift: bool = False  # a (x + s) + b (y + t), and the embedding scaled and shifted too (ZAYA)
    growth: Callable[[Site, float, Options], float | Bounds] | None = None  # (site, mean square before) -> after
    neutral: dict[str, Any] | None = None


class Handed(NamedTuple):
    """What a read through a norm leaves for its write: the stream that it read, and the same past the norm."""

    read: Tensor
    passed: Tensor


def norm_past(scheme: Scheme, stream: Tensor, site: Site) -> Norm | None:
    """The branch's norm, if it can hand the stream on: gradients past it and through it are then one pass, not three.

    A plain RMSNorm, in a pass that will be differentiated, and nobody who looks in between.
    """
    norm = scheme.pre[site.index]
    if type(norm) is not RMSNorm or not (torch.is_grad_enabled() and stream.requires_grad) or traced() or watched(norm):
        return None
    if stream.device.type == "meta" and not fuses(stream):
        return None
    own = scheme._tape is None and scheme.enters_itself
    return Norm(norm.weight, norm.eps) if own and norm.weight.dtype == stream.dtype else None


class PlacementConfig(SchemeConfig):
    """Options of every row."""

    row: ClassVar[PlacementRow]
    embedding_norm: bool | None = Field(None, description="norm right after the embedding; null: as the row says")
    final_norm: bool | None = Field(None, description="norm before the head; null: as the row says")

    def build(self, frame: Frame) -> Placement:
        return Placement(self, frame)

    def demands(self) -> Demands:
        return self.row.demands

    def neutral(self) -> PlacementConfig | None:
        return None if self.row.neutral is None else type(self)(**self.row.neutral)

    def growth(self, frame: Frame) -> Growth:
        if self.row.growth is None:
            return [None] * (len(frame.sites) + 1)
        law: list[Any] = [1.0]  # a row whose law is a bound goes on from the bound
        for site in frame.sites:
            law.append(self.row.growth(site, law[-1], self))
        return law


class Placement(Scheme):
    """x <- out( a x + b res( F( c pre(x) ) ) )"""

    config: PlacementConfig

    def __init__(self, config: PlacementConfig, frame: Frame) -> None:
        row = config.row

        def at(switch: Switch) -> list[bool]:
            return [switch(site, config) if callable(switch) else switch for site in frame.sites]

        super().__init__(config, frame, pre=at(row.pre), res=at(row.res))
        self.out = nn.ModuleList(frame.maybe_norm(on) for on in at(row.out))
        self.embedding = frame.maybe_norm(row.embedding if config.embedding_norm is None else config.embedding_norm)
        self.final = frame.maybe_norm(row.final if config.final_norm is None else config.final_norm)
        self.keep_normed = at(row.keep_normed)
        self.a = Coefficient.make(row.a, config, frame)
        self.b = Coefficient.make(row.b, config, frame)
        self.c = Coefficient.make(row.c, config, frame)
        self.gate = nn.Parameter(torch.empty(frame.sites[-1].layers)) if row.gate else None
        count, d = len(frame.sites), frame.dim
        self.skip_shift = nn.Parameter(torch.empty(count, d)) if row.shift else None
        self.branch_shift = nn.Parameter(torch.empty(count, d)) if row.shift else None
        self.embedding_scale = nn.Parameter(torch.empty(d)) if row.shift else None
        self.embedding_shift = nn.Parameter(torch.empty(d)) if row.shift else None
        self.reset_parameters()
        if not self.is_linear:
            self.not_linear = "it normalises the stream itself"

    @property
    def row(self) -> PlacementRow:  # not an attribute: rows hold functions, and a model must pickle
        return self.config.row

    @property
    def is_linear(self) -> bool:
        vector_skip = isinstance(self.row.a, Learned) and self.row.a.shape == "vector"
        return not (any(self.keep_normed) or vector_skip or any(not isinstance(n, nn.Identity) for n in self.out))

    def reset_parameters(self) -> None:
        for zero in (self.gate, self.skip_shift, self.branch_shift, self.embedding_shift):
            if zero is not None:
                nn.init.zeros_(zero)
        if self.embedding_scale is not None:
            nn.init.ones_(self.embedding_scale)

    def open(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        if self.embedding_scale is not None and self.embedding_shift is not None:
            x = (x + self.embedding_shift) * self.embedding_scale
        return self._source(x)

    def read(self, stream: Tensor, site: Site) -> tuple[Tensor, Tensor | Handed | None]:
        if not self.keep_normed[site.index] and (norm := norm_past(self, stream, site)) is not None:
            normed, passed = handed_norm(stream, norm)
            return self.c.times(normed, site), Handed(stream, passed)
        normed = self.enter(stream, site)
        return self.c.times(normed, site), normed if self.keep_normed[site.index] else None

    def write(self, stream: Tensor, y: Tensor, carry: Tensor | Handed | None, site: Site) -> Tensor:
        if isinstance(carry, Handed):
            carry = carry.passed if carry.read is stream else None
        skip = stream if carry is None else carry
        if self.skip_shift is not None:
            skip = skip + self.skip_shift[site.index]
        y = self.leave(y, site)
        x = self.out[site.index](self.a.times(skip, site) + y)
        return x if self.gate is None else x - F.silu(self.gate[site.layer - 1]) * self._held(x)

    def leave(self, y: Tensor, site: Site) -> Tensor:
        y = self.res[site.index](y)
        if self.branch_shift is not None:
            y = y + self.branch_shift[site.index]
        if self.b.shape == "vector":
            return self._source(self.b.times(y, site))  # a gain per channel is part of what the branch contributes
        return self.b.times(self._source(y), site)

    def _held(self, x: Tensor) -> Tensor:
        return x if self._is_cut else x.detach()  # GPAS: the gradient does not see the shrinking

    def close(self, stream: Tensor) -> Tensor:
        return self.final(self._read(stream))

    @property
    def init(self) -> Init:  # type: ignore[override]
        return self.row.init

    @torch.no_grad()
    def profile_(self, run: Callable[[], Any]) -> None:
        """Admin's profiling: set omega from the branch variances that `run()` (a forward pass) produces.

        omega_1 = 1, omega_{i+1} = sqrt(Var(omega_i x) + Var(F_i(x))), each a constant vector.
        """
        omega = self.a.values
        assert omega is not None, "profiling belongs to schemes with a learned skip coefficient"
        self.a.reset_parameters(1.0)
        with self.taped() as tape:
            run()
        total = 1.0
        for index, source in enumerate(tape.sources[1:]):
            omega[index].fill_(math.sqrt(total))
            total += source.float().var(unbiased=False).item()


class Coefficient(nn.Module):
    """a, b or c of the equation: 1 (nothing to do), a fixed number per branch, or learned.

    Fixed numbers come from the config, so that `to_empty` cannot erase them (elsewhere LayerNorm-Scaling's buffer was
    lost that way); the state holds a copy, which `init_weights` refills and loading compares.
    """

    def __init__(self, learned: Learned | None, numbers: list[float], dim: int, layers: list[int]) -> None:
        super().__init__()
        self.shape, self.numbers = None if learned is None else learned.shape, numbers
        self.identity = learned is None and all(number == 1.0 for number in numbers)
        self.slot = layers if learned is not None and learned.shared else list(range(len(numbers)))
        self.values: Tensor | None
        if self.identity:
            self.values = None
        elif learned is None:
            self.register_buffer("values", torch.empty(len(numbers)))
        else:
            shape = (max(self.slot) + 1, *((dim,) if learned.shape == "vector" else ()))
            self.values = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    @classmethod
    def make(cls, value: Number | Learned, options: Options, frame: Frame) -> Coefficient:
        learned = value if isinstance(value, Learned) else None
        function = value.initial if isinstance(value, Learned) else value
        numbers = [float(function(s, options) if callable(function) else function) for s in frame.sites]
        return cls(learned, numbers, frame.dim, [site.layer - 1 for site in frame.sites])

    @torch.no_grad()
    def reset_parameters(self, constant: float | None = None) -> None:
        if self.values is not None:
            for slot, number in zip(self.slot, self.numbers, strict=True):
                self.values[slot].fill_(number if constant is None else constant)

    def times(self, x: Tensor, site: Site) -> Tensor:
        """Where there is nothing to do, not even a call."""
        if self.identity:
            return x
        found: Tensor = self(x, site)
        return found

    def forward(self, x: Tensor, site: Site) -> Tensor:
        if self.values is None:
            return x
        # A fixed number is used as it is in Python: its copy in the state is rounded with the model's dtype.
        return x * (self.numbers[site.index] if self.shape is None else self.values[self.slot[site.index]])

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Refuse a checkpoint whose fixed numbers are not ours: it was trained with other options."""
        super()._load_from_state_dict(state_dict, prefix, *rest)
        stored = state_dict.get(f"{prefix}values")
        if self.shape is None and self.values is not None and stored is not None:
            wanted = torch.tensor(self.numbers, dtype=torch.float64)
            if stored.shape != wanted.shape or not torch.allclose(stored.double().cpu(), wanted, rtol=1e-2):
                messages: list[str] = rest[-1]
                messages.append(f"{prefix}values are {stored.tolist()}, but the config says {self.numbers}")
