"""Xiong et al. 2020 (arXiv 2002.04745) by Monte Carlo, for every scheme of the registry.

"paper" mode is their setting: one head, all matrices d x d and N(0, 1/d), W_Q = W_K = 0 (uniform attention), no output
matrix, no biases, ReLU FFN, LayerNorm, Gaussian inputs, and the loss of one position. "real" mode is the same model
with the scheme's own initialisation, working attention (heads, output matrix, causal mask) and an FFN four times as wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from normlab.config import Config
from normlab.errors import ConfigError
from normlab.model import Transformer, TransformerConfig
from normlab.model.attention import Pass
from normlab.model.layers import FeedForward
from normlab.observe.portrait import walk
from normlab.results import Plain, as_row
from normlab.schemes import SchemeConfig, label, parse_scheme
from normlab.stats import slope

SOURCE = "Xiong et al. 2020, arXiv 2002.04745"


class MeanFieldSetting(Config):
    """Width, depths and Monte Carlo size; depth counts layers of attention and FFN."""

    what: ClassVar[str] = "mean-field setting"

    mode: Literal["paper", "real"] = "paper"
    dim: Annotated[int, Field(ge=8)] = 64
    tokens: Annotated[int, Field(ge=2)] = 16
    depths: Annotated[tuple[int, ...], Field(strict=False)] = (2, 4, 8, 16)
    draws: Annotated[int, Field(ge=1)] = 8
    vocabulary: Annotated[int, Field(ge=2)] = 64
    heads: Annotated[int, Field(ge=1)] = 4
    seed: int = 0


@dataclass(frozen=True)
class DepthMeans:
    """One depth, averaged over draws. Lists run over branches (stream), layers (gradients) or reads (signal).

    stream   mean square of h at every read and at the close
    summed   mean square of what enters the norm after each addition (schemes that have one), else empty
    up, down Frobenius norms of the gradients of each layer's FFN matrices
    signal   norm of the gradient at each read: what back-propagation carries there
    """

    depth: int
    stream: list[float]
    summed: list[float]
    up: list[float]
    down: list[float]
    signal: list[float]


Span = tuple[float, float]


@dataclass(frozen=True)
class Fits:
    """What is fitted to a scheme: exponents in depth, factors and terms a layer."""

    last_gradient_vs_depth: float
    gradient_per_layer: float
    signal_per_layer: float
    signal_times_stream_per_layer: float
    """Where branches see only N(h), the signal should go like 1/|h|: this factor is then 1."""
    stream_added_per_layer: float
    summed_after_ffn: float


@dataclass(frozen=True)
class Stated:
    """What the theorem and lemmas say of the same numbers (a span: bounds). gradient_per_layer: from layer l to l + 1."""

    last_gradient_vs_depth: float | None = None
    gradient_per_layer: float | None = None
    stream_added_per_layer: float | Span | None = None
    summed_after_ffn: float | None = None

    def to_plain(self) -> dict[str, float | Span]:
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class MeanField:
    """A scheme at several depths with what is fitted to it; `stated` holds Xiong's value where there is one."""

    scheme: str
    depths: list[DepthMeans]
    fits: Fits
    stated: Stated

    def to_dict(self) -> dict[str, Plain]:
        return as_row(self)


def mean_field(scheme: str | SchemeConfig, setting: MeanFieldSetting | None = None) -> MeanField:
    """Stream and gradients of a scheme at initialisation, and the exponents that they follow."""
    setting = setting or MeanFieldSetting()
    config = parse_scheme(scheme)
    if len(set(setting.depths)) < 2 or min(setting.depths) < 1:
        raise ConfigError(f"an exponent in depth needs two depths or more, all positive; got {list(setting.depths)}")
    found = [at_depth(config, setting, depth) for depth in sorted(set(setting.depths))]
    return MeanField(label(config), found, _fit(found), STATED.get(label(config), Stated()))


@dataclass(frozen=True)
class _Draw:
    """One random network; squares of what `DepthMeans` names, since the lemmas are about expected squared norms."""

    stream: list[float]
    summed: list[float]
    up: list[float]
    down: list[float]
    signal: list[float]


def at_depth(scheme: SchemeConfig, setting: MeanFieldSetting, depth: int) -> DepthMeans:
    """Means over the draws of the setting."""
    draws = []
    for draw in range(setting.draws):
        generator = torch.Generator().manual_seed(setting.seed * 100_003 + draw * 1_009 + depth)
        draws.append(_one_draw(scheme, setting, depth, generator))

    def mean(of: Callable[[_Draw], list[float]]) -> list[float]:
        return [sum(column) / len(column) for column in zip(*map(of, draws), strict=True)]

    def root(of: Callable[[_Draw], list[float]]) -> list[float]:
        return [math.sqrt(value) for value in mean(of)]

    return DepthMeans(
        depth,
        stream=mean(lambda d: d.stream),
        summed=mean(lambda d: d.summed),
        up=root(lambda d: d.up),
        down=root(lambda d: d.down),
        signal=root(lambda d: d.signal),
    )


def build(scheme: SchemeConfig, setting: MeanFieldSetting, depth: int, generator: torch.Generator) -> Transformer:
    """The model of the setting, its weights drawn from the generator."""
    paper = setting.mode == "paper"
    width = setting.dim
    config = TransformerConfig(
        vocab_size=setting.vocabulary,
        dim=width,
        depth=depth,
        heads=1 if paper else setting.heads,
        scheme=scheme,
        norm="layernorm",
        positions="nope",
        ffn="relu",
        ffn_dim=width if paper else 4 * width,
        causal=not paper,
        eps=1e-12,
        tie_embeddings=False,
        start="authors",
        init_std=width**-0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        model = Transformer(config).double()
        if paper:
            fill_paper_(model)
    return model


@torch.no_grad()
def fill_paper_(model: Transformer) -> None:
    """The paper's initialisation: N(0, 1/d) everywhere, W_Q = W_K = 0, no output matrix (the identity)."""
    width = model.config.dim
    for branch in model.branches:
        for role, weight in branch.matrices().items():  # type: ignore[operator]
            if role in ("query", "key"):
                weight.zero_()
            elif role == "out":
                weight.copy_(torch.eye(width, dtype=weight.dtype))
            else:
                weight.normal_(std=width**-0.5)


def run_branches(model: Transformer, x: Tensor) -> Tensor:
    """The model's own loop from an embedded input to what the head sees."""
    stream = model.scheme.open(x)
    shared = Pass()
    for site, branch in zip(model.sites, model.branches, strict=True):
        y, carry = model.scheme.read(stream, site)
        stream = model.scheme.write(stream, branch(y, shared), carry, site)
    return model.scheme.close(stream)


def _one_draw(scheme: SchemeConfig, setting: MeanFieldSetting, depth: int, generator: torch.Generator) -> _Draw:
    model = build(scheme, setting, depth, generator)
    x = torch.randn(1, setting.tokens, setting.dim, generator=generator, dtype=torch.float64, requires_grad=True)
    readout = torch.randn(setting.dim, setting.vocabulary, generator=generator, dtype=torch.float64) / setting.dim**0.5
    seen = walk(model, lambda: run_branches(model, x))
    last = seen.result[:, -1] @ readout  # the one position that a causal mask lets see all others
    target = torch.randint(setting.vocabulary, (1,), generator=generator)
    loss = torch.nn.functional.cross_entropy(last, target)
    ffns = [branch for branch in model.branches if isinstance(branch, FeedForward)]
    weights = [ffn.up.weight for ffn in ffns] + [ffn.down.weight for ffn in ffns]
    grads = torch.autograd.grad(loss, [*weights, *seen.reads], allow_unused=True)
    squares = [0.0 if g is None else float(g.square().sum()) for g in grads]
    return _Draw(
        stream=[float(h.detach().square().mean()) for h in seen.reads],
        summed=[float(h.detach().square().mean()) for h in seen.summed],
        up=squares[:depth],
        down=squares[depth : 2 * depth],
        signal=squares[2 * depth :],
    )


# -- fits and statements --------------------------------------------------------------------------------------------
def _log(values: Sequence[float]) -> list[float]:
    return [math.log(v) if v > 0 else math.nan for v in values]


def _fit(found: list[DepthMeans]) -> Fits:
    deepest = found[-1]
    layers = list(range(1, deepest.depth + 1))
    after = deepest.stream[2::2]  # after each whole layer
    carried = [g * math.sqrt(h) for g, h in zip(deepest.signal, deepest.stream, strict=True)]
    halves = [i / 2 for i in range(len(deepest.signal))]
    behind_ffn = deepest.summed[1::2]
    return Fits(
        last_gradient_vs_depth=slope(_log([d.depth for d in found]), _log([d.down[-1] for d in found])),
        gradient_per_layer=math.exp(slope(layers, _log(deepest.down))),
        signal_per_layer=math.exp(slope(halves, _log(deepest.signal))),
        signal_times_stream_per_layer=math.exp(slope(halves, _log(carried))),
        stream_added_per_layer=slope(layers, after),
        summed_after_ffn=sum(behind_ffn) / max(1, len(behind_ffn)) if deepest.summed else math.nan,
    )


STATED = {
    "post_norm": Stated(0.0, math.sqrt(3 / 2), 0.0, 1.5),
    "pre_norm": Stated(last_gradient_vs_depth=-0.5, gradient_per_layer=1.0, stream_added_per_layer=(0.5, 1.5)),
}


def lemma_relu(dim: int = 256, draws: int = 4000, seed: int = 0) -> tuple[float, float]:
    """Lemma 1: E|ReLU(X)|^2 = sigma^2 d / 2 for X ~ N(0, sigma^2 I). Measured over d sigma^2, and stated."""
    x = 3.0 * torch.randn(draws, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return float(x.relu().square().sum(-1).mean() / (9.0 * dim)), 0.5


def lemma_layer_norm(dim: int = 64, size: float = 7.0, seed: int = 0) -> tuple[float, float]:
    """Lemma 3: the Jacobian of LayerNorm has the spectral norm sqrt(d)/|x - mean|: measured at a random x, and stated."""
    x = size * torch.randn(dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def norm(v: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(v, (dim,), eps=0.0)

    jacobian = torch.autograd.functional.jacobian(norm, x)
    return float(torch.linalg.matrix_norm(jacobian, 2)), math.sqrt(dim) / float((x - x.mean()).norm())


@dataclass(frozen=True)
class Forms:
    """Back-propagation through a stack, whole and taken apart (Wang et al. 2019, arXiv 1906.01787, eqs. 5 and 6).

    product: Post-LN, dx_L/dx_0 = prod_k J_N(k) (I + dF_k);  sum: Pre-LN, dx_L/dx_0 = I + sum_k d F_k(N x_k) / dx_0.
    `error` is the largest difference between the whole and the form; sizes are Frobenius norms over sqrt(dimension).
    `identity` is the size of what reaches the input by the skip path alone: the product of J_N, or I.
    `norm_after_ffn` is the mean |J_N| behind the FFNs (Post-LN), whose stated value is sqrt(2/3) a layer.
    """

    form: Literal["product", "sum"]
    error: float
    whole: float
    identity: float
    by_layer: list[float]
    norm_after_ffn: float | None = None


def backprop_forms(
    scheme: Literal["post_norm", "pre_norm"], *, depth: int = 8, setting: MeanFieldSetting | None = None
) -> Forms:
    """Both forms with exact Jacobians (small sizes: the Jacobian is (tokens dim)^2)."""
    if scheme not in ("post_norm", "pre_norm"):
        raise ConfigError(f"the two forms are those of post_norm (product) and pre_norm (sum), not {scheme!r}")
    setting = setting or MeanFieldSetting(dim=16, tokens=3)
    generator = torch.Generator().manual_seed(setting.seed)
    model = build(parse_scheme(scheme), setting, depth, generator)
    x = torch.randn(1, setting.tokens, setting.dim, generator=generator, dtype=torch.float64)
    shared, size = Pass(), x.numel()

    def branch(index: int, v: Tensor) -> Tensor:
        y, _ = model.scheme.read(v, model.sites[index])
        result: Tensor = model.branches[index](y, shared)
        return result

    def step(index: int, v: Tensor) -> Tensor:
        y, carry = model.scheme.read(v, model.sites[index])
        result: Tensor = model.scheme.write(v, model.branches[index](y, shared), carry, model.sites[index])
        return result

    def jacobian(function: Any, v: Tensor) -> Tensor:
        result: Tensor = torch.autograd.functional.jacobian(function, v).reshape(size, size).detach()
        return result

    def through(v: Tensor) -> Tensor:
        for index in range(len(model.branches)):
            v = step(index, v)
        return v

    whole, eye = jacobian(through, x), torch.eye(size, dtype=torch.float64)
    built, skip, sizes, total, v = eye, eye, [], eye, x
    norms: list[float] = []
    for index in range(len(model.branches)):
        inner = jacobian(lambda z, i=index: branch(i, z), v)
        if scheme == "post_norm":
            norm = model.scheme.out[index]  # type: ignore[index]
            outer = jacobian(norm, (v + branch(index, v)).detach())
            built, skip = outer @ (eye + inner) @ built, outer @ skip
            sizes.append(_size(built))
            # LayerNorm takes two of the d directions away; what is left is scaled by 1/sigma alike.
            norms.append(_size(outer) / math.sqrt(1 - 2 / setting.dim))
        else:
            sizes.append(_size(inner @ total))
            built = built + inner @ total
            total = built
        v = step(index, v).detach()
    form: Literal["product", "sum"] = "product" if scheme == "post_norm" else "sum"
    return Forms(form, float((whole - built).abs().max()), _size(whole), _size(skip), sizes[1::2], _mean(norms[1::2]))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _size(matrix: Tensor) -> float:
    return float(matrix.square().sum().sqrt() / matrix.shape[0] ** 0.5)
