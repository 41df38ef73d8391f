"""Somebody else's residual, seen as one of three things: a whole path, one connection of n streams, one read of sources.

    Path        run(x, F) -> output       the whole residual path around branches F(index, z) of our choice
    Connection  step(streams, F) -> streams      one branch's reading and writing of the streams [batch, time, n, d]
    Pool        read(sources) -> h        one read of the stacked sources [sources, batch, time, d]

`as_port` finds out which one an object is. Whatever it is not can be wrapped in these by hand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from normlab.errors import ConfigError, InputError, UnsupportedError
from normlab.schemes import Frame, Scheme, SchemeConfig
from normlab.testing.shipped import embedded, recognise, simple_branches

Branch = Callable[[int, Tensor], Tensor]
VERBS = ("open", "read", "write", "close")


@dataclass(frozen=True)
class Path:
    """A whole residual path, and our scheme with its weights (`twin`)."""

    what: str
    module: nn.Module
    frame: Frame
    config: SchemeConfig
    run: Callable[[nn.Module, Tensor, Branch], Tensor]
    twin: Callable[[nn.Module], Scheme]


@dataclass(frozen=True)
class Connection:
    """One connection of n streams: `step(module, streams, F)` reads, calls F(z) once, and writes."""

    what: str
    module: nn.Module
    streams: int
    dim: int
    step: Callable[[nn.Module, Tensor, Callable[[Tensor], Tensor]], Tensor]


@dataclass(frozen=True)
class Pool:
    """One read over depth: `read(module, sources)` of [sources, batch, time, d]."""

    what: str
    module: nn.Module
    dim: int
    read: Callable[[nn.Module, Tensor], Tensor]


Port = Path | Connection | Pool


def run_verbs(scheme: Any, x: Tensor, branch: Branch) -> Tensor:
    stream = scheme.open(x)
    for site in scheme.frame.sites:
        z, carry = scheme.read(stream, site)
        stream = scheme.write(stream, branch(site.index, z), carry, site)
    closed: Tensor = scheme.close(stream)
    return closed


def as_port(thing: object, config: SchemeConfig | None = None) -> Port:
    """What kind of residual this is; `config` says which scheme it claims to be, where that cannot be seen."""
    if isinstance(thing, Path | Connection | Pool):
        return thing
    if not isinstance(thing, nn.Module):
        raise InputError(f"{_name(thing)} is no torch module; give one, or wrap it in nl.testing.Connection or Pool")
    if all(callable(getattr(thing, verb, None)) for verb in VERBS):
        return _from_verbs(thing, config)
    if hasattr(thing, "pseudo_query"):
        dim = cast(Tensor, thing.pseudo_query).shape[-1]
        return Pool("a read of stacked sources", thing, dim, lambda module, sources: module(sources))
    if hasattr(thing, "num_residual_streams") and hasattr(thing, "static_alpha"):
        return _from_folded(thing)
    if isinstance(getattr(thing, "fn", None), nn.Parameter) and isinstance(getattr(thing, "base", None), nn.Parameter):
        return _from_coefficients(thing)
    try:
        return _from_decoder(thing)
    except InputError:
        raise InputError(
            f"{_name(thing)} is no residual that can be recognised: expected the verbs open, read, write and close, a "
            "decoder of hyper-connected layers, a connection of streams, or a read of sources; wrap it in "
            "nl.testing.Connection or nl.testing.Pool"
        ) from None


def _name(thing: object) -> str:
    return thing.__name__ if isinstance(thing, type) else type(thing).__name__


def _from_verbs(module: nn.Module, config: SchemeConfig | None) -> Path:
    frame = getattr(module, "frame", None)
    chosen = config or getattr(module, "config", None)
    if not isinstance(frame, Frame) or not isinstance(chosen, SchemeConfig):
        raise InputError(
            f"{_name(module)} has the verbs, but needs a `frame` (nl.testing.Frame) and a scheme's name too"
        )

    def twin(given: nn.Module) -> Scheme:
        made = chosen.build(frame).to(next(given.parameters()).dtype)
        fault = made.load_state_dict(given.state_dict(), strict=False)
        if fault.missing_keys or fault.unexpected_keys:
            names = ", ".join([*fault.missing_keys, *fault.unexpected_keys][:3])
            raise InputError(f"the parameters of {_name(module)} are not named as those of {chosen.name}: {names}")
        return made

    return Path("the four verbs", module, frame, chosen, run_verbs, twin)


def _from_decoder(module: nn.Module) -> Path:
    found = recognise(module)
    if found.config.name == "laurel":
        raise UnsupportedError(
            "Gemma-3n wraps LAuReL in AltUp, whose streams normlab does not have: only its step inside a layer compares"
        )

    def run(given: nn.Module, x: Tensor, branch: Branch) -> Tensor:
        shipped = recognise(given)
        with simple_branches(shipped, x, branch):
            return embedded(shipped.decoder, x)

    what = f"a decoder of {len(found.frame.sites) // 2} layers"
    return Path(what, module, found.frame, found.config, run, lambda given: recognise(given).build())


def _from_folded(module: Any) -> Connection:
    """The package hyper-connections: `input, add = connection(streams)`, the streams folded into the batch or, in its
    mHCv2, beside the channels."""
    n, beside = module.num_residual_streams, module.static_beta.dim() > 1

    def step(given: nn.Module, streams: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        if beside:
            z, add = given(streams)
            written: Tensor = add(branch(z))
            return written
        batch, time, _, dim = streams.shape
        folded = streams.permute(0, 2, 1, 3).reshape(batch * n, time, dim)
        z, add = given(folded)
        written = add(branch(z))
        unfolded: Tensor = written.view(batch, n, time, dim).permute(0, 2, 1, 3)
        return unfolded

    return Connection("a connection of n streams", module, n, module.norm.gamma.shape[-1], step)


def _from_coefficients(module: Any) -> Connection:
    """transformers' hyper-connection: forward(streams) -> post, comb, input (or post, input), applied by the layer."""
    n = module.hc_mult

    def step(given: nn.Module, streams: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        post, *comb, z = given(streams)
        y = branch(z)
        kept = comb[0].to(streams.dtype).transpose(-1, -2) @ streams if comb else streams
        written: Tensor = kept + post.to(streams.dtype).unsqueeze(-1) * y.unsqueeze(-2)
        return written

    return Connection("coefficients of n streams", module, n, module.fn.shape[1] // n, step)


def checked(port: Connection) -> Connection:
    """Refuse what says nothing, in one sentence."""
    if port.streams < 2:
        raise ConfigError(
            "one stream: its mixing is the number 1, so there is nothing to verify; give 2 streams or more"
        )
    if port.streams > port.dim:
        raise ConfigError(
            f"{port.streams} streams of width {port.dim}: their mixing cannot be told from their values; "
            f"give a width of at least {port.streams}"
        )
    return port


def fresh(module: nn.Module) -> nn.Module:
    """A copy in float64, so that what is tried leaves no trace."""
    return copy.deepcopy(module).double().eval()


@dataclass(frozen=True)
class SeenConnection:
    """What one connection does to some streams, found from outside: X' = res X + post (x) F(pre X)."""

    pre: Tensor  # [tokens, n]
    post: Tensor  # [tokens, n]
    res: Tensor  # [tokens, n, n]
    misfit: float  # how far it is from that equation


def look(port: Connection, module: nn.Module, streams: Tensor) -> SeenConnection:
    """From the branch's input, and from what two different outputs of it do to the streams."""
    inputs: list[Tensor] = []

    def answer(y: Tensor | None) -> Callable[[Tensor], Tensor]:
        def branch(z: Tensor) -> Tensor:
            inputs.append(z)
            return torch.zeros_like(z) if y is None else y

        return branch

    y = torch.randn(*streams.shape[:2], streams.shape[-1], dtype=streams.dtype)
    kept = port.step(module, streams, answer(None)).flatten(0, 1)
    moved = port.step(module, streams, answer(y)).flatten(0, 1) - kept
    flat, y, z = streams.flatten(0, 1), y.flatten(0, 1), inputs[0].flatten(0, 1)
    post = (moved * y.unsqueeze(1)).sum(-1) / y.square().sum(-1, keepdim=True)
    inverse = torch.linalg.pinv(flat)  # [tokens, d, n]
    res, pre = kept @ inverse, (z.unsqueeze(1) @ inverse).squeeze(1)
    gaps = [
        (res @ flat - kept).abs().max(),
        (post.unsqueeze(-1) * y.unsqueeze(1) - moved).abs().max(),
        ((pre.unsqueeze(1) @ flat).squeeze(1) - z).abs().max(),
    ]
    return SeenConnection(pre, post, res, max(float(gap) for gap in gaps))
