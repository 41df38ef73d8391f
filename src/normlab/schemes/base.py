"""The protocol: a scheme is four verbs on a stream.

    stream   = scheme.open(x)                        embedding -> stream (a tensor, n streams, or depth sources)
    x, carry = scheme.read(stream, site)             what this branch sees
    stream   = scheme.write(stream, y, carry, site)  how its output joins
    x        = scheme.close(stream)                  what the head sees

plus `init_branch_` (DeepNorm's gains) and `after_step_` (nGPT's renormalisation). The scheme owns every norm and
parameter of the residual path; branches (attention, FFN) know nothing of it. Streams are values: a verb returns a new
one and never changes its argument, so the same scheme serves a loop, activation checkpointing and a pipeline stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from normlab.config import Config
from normlab.schemes.norms import NormKind, make_norm
from normlab.schemes.start import AUTHORS_STD, Start, output_factor

Kind = Literal["attention", "ffn"]
Stream = Any  # what `open` returns is the scheme's own business
Carry = Any  # and so is what `read` keeps for `write`


@dataclass(frozen=True)
class Site:
    """Which branch this is. `layer` counts from 1, as the papers do; `index` counts branches from 0."""

    index: int
    layer: int
    kind: Kind
    count: int  # branches in the model (the papers' M, or L where a "layer" is a sublayer)
    layers: int  # layers in the model (L_b)

    @property
    def opens_layer(self) -> bool:
        return self.kind == "attention"

    @property
    def closes_layer(self) -> bool:
        return self.index == self.count - 1 or self.count == self.layers or self.kind == "ffn"


def make_sites(depth: int, kinds: Sequence[Kind] = ("attention", "ffn")) -> tuple[Site, ...]:
    """The sites of `depth` layers, in order: number your own branches with it, and hand each verb its site."""
    count = depth * len(kinds)
    return tuple(Site(i, i // len(kinds) + 1, kinds[i % len(kinds)], count, depth) for i in range(count))


@dataclass(frozen=True)
class Frame:
    """What a scheme is built into: the shape it shares with its model."""

    dim: int
    sites: tuple[Site, ...]
    norm: NormKind = "rmsnorm"
    eps: float = 1e-6
    init_std: float = AUTHORS_STD  # of the scheme's own random matrices and, at the authors' start, of plain branches
    start: Start = "authors"
    matrix_std: float | None = None  # of a branch's matrices at the fair start; None: factor * inputs^-1/2
    factor: float = 1.0

    def branch_std(self, inputs: int) -> float:
        """Of a branch's matrix at the fair start: it then keeps the mean square of what it multiplies."""
        return self.factor * inputs**-0.5 if self.matrix_std is None else self.matrix_std

    def new_norm(self, *, eps: float | None = None) -> nn.Module:
        return make_norm(self.norm, self.dim, eps=self.eps if eps is None else eps)

    def maybe_norm(self, on: bool, *, eps: float | None = None) -> nn.Module:
        return self.new_norm(eps=eps) if on else nn.Identity()

    @property
    def norm_parameters(self) -> int:
        d = self.dim
        return {"rmsnorm": d, "layernorm": 2 * d, "dyt": 2 * d + 1, "derf": 2 * d + 2, "l2": d}[self.norm]


@dataclass(frozen=True)
class Demands:
    """What a scheme asks of the parts that lie off the residual path."""

    qk_norm: Literal["head", "full", "unit"] | None = None  # None: the model's own setting stands
    v_norm: bool = False  # a norm on each head's values (HybridNorm)
    inner_norm: bool = False  # a norm inside each branch, before its output projection (sub-LN)
    unit: bool = False  # nGPT: learned scales on the FFN's hidden units and on the logits


class Branch(Protocol):
    """What `init_branch_` may rely on: the branch's weight matrices by role.

    Roles: query, key, value, out (attention); up, gate, down (FFN). Each is an [out, in] view to be filled in place.
    """

    def matrices(self) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Card:
    """What `normlab schemes show NAME` prints. In formulas d is the width, M branches, L layers, N a norm's size."""

    family: str
    equation: str
    citation: str
    growth: str
    init: str = "plain: N(0, 0.02^2)"  # at the start `authors`
    own_start: str = (
        ""  # what of the start is the scheme's definition, and so differs from other schemes' at every start
    )
    # Formulas that the contract suite evaluates: of the residual path, and of what the scheme asks of its branches and
    # head (F is the FFN's inner width, h a head's, V the vocabulary).
    extra_parameters: str = "0"
    branch_parameters: str = "0"
    traffic: str = "2d read, 1d written"  # residual path, per token and branch, inner norms fused
    traps: tuple[str, ...] = ()
    parent: str | None = None  # the scheme that the neutral setting equals


class Parts(NamedTuple):
    """A stream as plain tensors, for what crosses a device boundary.

    `settled` only ever grows: no later write changes or removes an entry (the closed blocks of Attention Residuals), so
    whoever has seen one may keep it. `moving` is replaced by every write.
    """

    settled: tuple[Tensor, ...]
    moving: tuple[Tensor, ...]


@dataclass(frozen=True)
class Access:
    """One operation of the residual path and its memory traffic per token and branch, in units of the width d.

    The accounting of the Attention Residuals paper (Table 1): each operation reads its inputs and writes its results,
    averaged over the branches; what happens inside a branch (its own norm included) is not counted. `scalars` are
    single numbers read or written, beside multiples of d.
    """

    operation: str
    read: float
    write: float
    scalars: float = 0.0


Bounds = tuple[float, float]
Growth = list[float | Bounds | None]  # of each read, and of the close


class SchemeConfig(Config, ABC):
    """A scheme's options under its registered name; `build` makes the module."""

    what: ClassVar[str] = "scheme"
    card: ClassVar[Card]
    name: str

    @abstractmethod
    def build(self, frame: Frame) -> Scheme: ...

    def check(self, sites: Sequence[Site]) -> None:
        """Raise ConfigError if the options are impossible for this many branches."""

    def demands(self) -> Demands:
        return Demands()

    def growth(self, frame: Frame) -> Growth:
        """The scheme's law at initialisation: mean square of h at each read and at the close (M + 1 values).

        It holds for independent, linear, variance-preserving branches and an embedding of mean square 1. A pair is a
        lower and an upper bound; None makes no statement.
        """
        return [None] * (len(frame.sites) + 1)

    def neutral(self) -> SchemeConfig | None:
        """The setting at which this scheme computes the same function as `card.parent`, at initialisation."""
        return None

    def parent(self) -> str | None:
        """The scheme that this setting equals when it is neutral."""
        return self.card.parent

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        """What the residual path reads and writes; the standard residual reads x and F(x) and writes x: 3d."""
        return [Access("residual merge", 2.0, 1.0)]

    def mixing_flops(self, frame: Frame) -> float:
        """Forward arithmetic of the residual path for one token, norms left out; the standard residual adds: M d."""
        return float(len(frame.sites) * frame.dim)

    def symbols(self, frame: Frame) -> Mapping[str, int]:
        """What the card's formulas speak of beside the model's sizes: a rank r, say. n, the streams, is known."""
        return {}

    def zero_gradients(self, frame: Frame) -> Mapping[str, tuple[int, ...]]:
        """Parameter name -> rows whose gradient is exactly zero by construction, however the parameters are set."""
        return {}


@dataclass(frozen=True)
class Init:
    """How a scheme fills its branches, as data.

    `gain` belongs to the scheme's definition (DeepNorm's beta) and holds at every start. The other two are its authors'
    recipe and hold at the start `authors` alone.
    """

    kind: Literal["plain", "xavier"] = "plain"
    gain: Callable[[Site, Any], float] | None = None  # on value, out, up, gate, down
    out: Callable[[Site, Any], float] | None = None  # on out, down only

    @torch.no_grad()
    def fill_(self, branch: Branch, site: Site, *, options: Any, frame: Frame) -> None:
        recipe = INITS.get(frame.start, self)
        for role, weight in branch.matrices().items():
            # Query and key set the temperature of the softmax, not the size of the update: gains leave them alone.
            gain = 1.0 if self.gain is None or role in ("query", "key") else self.gain(site, options)
            if role in ("out", "down"):
                if frame.start == "fair":
                    gain *= output_factor(site.count) if self.gain is None else 1.0
                elif recipe.out is not None:
                    gain *= recipe.out(site, options)
            if frame.start == "fair":
                nn.init.normal_(weight, std=gain * frame.branch_std(weight.shape[1]))
            elif recipe.kind == "xavier":
                nn.init.xavier_normal_(weight, gain=gain)
            else:
                nn.init.normal_(weight, std=gain * frame.init_std)


PLAIN = Init()
XAVIER = Init("xavier")
GPT2 = Init(out=lambda site, options: site.count**-0.5)  # residual projections divided by sqrt(2L)
INITS = {"plain": PLAIN, "xavier": XAVIER, "gpt2": GPT2}  # the starts that are named after a recipe


def applied(module: nn.Module, x: Tensor) -> Tensor:
    """module(x); what a module answers has no type of its own."""
    found: Tensor = module(x)
    return found


class Tape:
    """Records a forward pass of the residual path: h at every read, v at every source. See `depth_mixing`."""

    def __init__(self, *, cut: bool) -> None:
        self.cut = cut
        self.reads: list[Tensor] = []
        self.sources: list[Tensor] = []

    def read(self, h: Tensor) -> Tensor:
        self.reads.append(h)
        return h

    def source(self, v: Tensor) -> Tensor:
        if self.cut:  # sources become leaves, so that the graph holds the residual path alone
            v = v.detach().requires_grad_()
        self.sources.append(v)
        return v


def tensors_of(stream: Stream) -> Iterator[Tensor]:
    """Every tensor of a stream, in order. What is neither tensor nor tuple holds none of its own."""
    if isinstance(stream, Tensor):
        yield stream
    elif isinstance(stream, tuple):
        for part in stream:
            yield from tensors_of(part)


def _rebuild(like: Stream, tensors: Iterator[Tensor]) -> Stream:
    if isinstance(like, Tensor):
        return next(tensors)
    if not isinstance(like, tuple):
        return like
    parts = [_rebuild(part, tensors) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


class Scheme(nn.Module, ABC):
    """Base of all schemes. Subclasses route every branch input through `enter` and every output through `leave`."""

    # Is h a linear mix of branch outputs, for given coefficients? If not, why not (shown to the user).
    not_linear: str | None = None
    init: Init = PLAIN

    def __init__(
        self, config: SchemeConfig, frame: Frame, *, pre: bool | Sequence[bool], res: bool | Sequence[bool] = False
    ) -> None:
        super().__init__()
        self.config, self.frame = config, frame
        self._tape: Tape | None = None
        count = len(frame.sites)
        pre, res = [[on] * count if isinstance(on, bool) else on for on in (pre, res)]
        scales = self.input_scales()
        self.pre = nn.ModuleList(frame.maybe_norm(on, eps=frame.eps * s**2) for on, s in zip(pre, scales, strict=False))
        self.res = nn.ModuleList(frame.maybe_norm(on) for on in res)

    def input_scales(self) -> list[float]:
        """By how much h is smaller, at initialisation, than the plain residual stream (M + 1 values, the close last).

        A norm is scale invariant only up to its eps: N(h/n) with eps is N(h) with n^2 eps. So a scheme whose h is a
        *mean* of n sources takes eps / n^2, and equals its parent scheme at any eps.
        """
        return [1.0] * (len(self.frame.sites) + 1)

    # -- the verbs -------------------------------------------------------------------------------------------------
    @abstractmethod
    def open(self, x: Tensor) -> Stream: ...
    @abstractmethod
    def read(self, stream: Stream, site: Site) -> tuple[Tensor, Carry]: ...
    @abstractmethod
    def write(self, stream: Stream, y: Tensor, carry: Carry, site: Site) -> Stream: ...
    @abstractmethod
    def close(self, stream: Stream) -> Tensor: ...

    def forward(self, verb: str, *args: Any) -> Any:
        """A verb by its name. What acts on the calls of a module (offloading, PEFT's wrappers) then acts on verbs."""
        return getattr(self, verb)(*args)

    # -- the stream across devices ---------------------------------------------------------------------------------
    def to_parts(self, stream: Stream) -> Parts:
        """The least that rebuilds the stream elsewhere. The default sends every tensor of it, each time.

        A scheme with sources overrides both: what is derived (source norms, the results of a batched read) stays out
        of the parts, and `from_parts` computes it again.
        """
        return Parts((), tuple(tensors_of(stream)))

    def from_parts(self, parts: Parts, like: Stream, site: Site | None) -> Stream:
        """The stream again. `like` has its structure, not its sizes; `site` reads next (None: the close)."""
        return _rebuild(like, iter(parts.moving))

    # -- what subclasses share -------------------------------------------------------------------------------------
    @property
    def enters_itself(self) -> bool:
        """Nobody has put himself between a read and its branch."""
        return "enter" not in self.__dict__ and type(self).enter is Scheme.enter

    def enter(self, h: Tensor, site: Site) -> Tensor:
        """The branch's own norm: N(h)."""
        if self._tape is not None:
            h = self._tape.read(h)
        return self.pre[site.index](h)

    def leave(self, y: Tensor, site: Site) -> Tensor:
        """The norm on the branch's output: N(F(.))."""
        return self._source(self.res[site.index](y))

    def _source(self, v: Tensor) -> Tensor:
        return v if self._tape is None else self._tape.source(v)

    def _read(self, h: Tensor) -> Tensor:
        return h if self._tape is None else self._tape.read(h)

    def weigh(self, coefficients: Tensor) -> Tensor:
        """Pass data-dependent mixing coefficients through here: `depth_mixing` holds them fixed."""
        return coefficients.detach() if self._is_cut else coefficients

    @property
    def _is_cut(self) -> bool:
        """A pass for `depth_mixing`, whose gradients are the mixing; any other pass has its true gradients."""
        return self._tape is not None and self._tape.cut

    @contextmanager
    def taped(self, *, cut: bool = False) -> Iterator[Tape]:
        self._tape = tape = Tape(cut=cut)
        try:
            yield tape
        finally:
            self._tape = None

    # -- initialisation and steps ------------------------------------------------------------------------------------
    def init_weights(self) -> None:
        """Fill every parameter and buffer of the residual path; needed after `to_empty`, harmless otherwise."""
        for module in self.modules():
            reset = getattr(module, "reset_parameters", None)
            if module is not self and callable(reset):
                reset()
        self.reset_parameters()

    def fill(self) -> None:
        """Call at the end of construction where something is drawn at random.

        The global random numbers stay where they are, so that a model built on the meta device, and filled later by
        `init_weights`, is the same as one built at once.
        """
        with torch.random.fork_rng(devices=[]):
            self.init_weights()

    def reset_parameters(self) -> None:
        """Fill the scheme's own parameters and buffers (not those of its norms)."""

    def init_branch_(self, branch: Branch, site: Site) -> None:
        """Fill a branch's matrices as the frame's start says."""
        self.init.fill_(branch, site, options=self.config, frame=self.frame)

    def after_step_(self, model: nn.Module) -> None:
        """Called after every optimizer step (nGPT puts the weights back on the sphere)."""
