"""Keys, mix, merge, one read and RMSNorm, with their backwards, as operations of PyTorch: one schema for every device.

    CPU              C (depth_kernels.c), where a compiler is and the numbers are float32 or float64
    CUDA, ROCm       Triton (depth_triton.py), where it is installed
    anything else    PyTorch (depth_plain.py)

A compiler sees each as one node, so that a graph grows with depth as the network does and not as its square; a meta
device, and whoever counts operations there, sees what a GPU would run. On a CPU in eager mode `Operation` goes past the
dispatcher, whose share is large where tensors are small. depth_reads.py has the functions that schemes call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.library import custom_op

from normlab.schemes.depth_kernels import Kernels, usable
from normlab.schemes.norms import precise
from normlab.schemes.ops import depth_plain
from normlab.schemes.ops.depth_plain import Pair, single
from normlab.schemes.ops.gather import Room, rooms_for

Given = ParamSpec("Given")
Found = TypeVar("Found")
DEVICES = {"cuda", "meta"}  # beside the CPU, which has C
Context = Any  # what torch hands to the rules of derivatives


_plain_only: list[bool] = []  # not empty: meta tensors see PyTorch's own operations


@contextmanager
def by_plain_operations() -> Iterator[None]:
    """Count what PyTorch's own operations would move: on a meta device nothing of ours is used inside."""
    _plain_only.append(True)
    try:
        yield
    finally:
        _plain_only.pop()


def fuses(x: Tensor) -> bool:
    """Are passes of ours for devices used on this tensor?"""
    return x.device.type in DEVICES and not _plain_only


@dataclass(frozen=True)
class Operation(Generic[Given, Found]):
    """A function and its registered twin."""

    function: Callable[Given, Found]
    registered: CustomOpDef

    def on(self, where: Tensor) -> Callable[Given, Found]:
        """What to call for tensors that lie where this one does."""
        return self.function if where.device.type == "cpu" or _plain_only else self.registered


def operation(schema: str) -> Callable[[Callable[Given, Found]], Operation[Given, Found]]:
    """Register a function under its name; `schema` as torch writes it."""

    def register(function: Callable[Given, Found]) -> Operation[Given, Found]:
        registered = custom_op(f"normlab::depth_{function.__name__}", function, mutates_args=(), schema=schema)
        return Operation(function, registered)

    return register


@cache
def _triton() -> ModuleType:
    try:
        from normlab.schemes.ops import depth_triton
    except ImportError:  # no Triton: PyTorch's own operations are right too
        return depth_plain
    return depth_triton


def elsewhere(x: Tensor) -> Any:
    """The module with the passes for a device that has no C."""
    return _triton() if x.is_cuda else depth_plain


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [t for t in tensors if t is not None]


# -- RMSNorm -----------------------------------------------------------------------------------------------------------
@operation("(Tensor x, Tensor gain, float eps) -> (Tensor, Tensor)")
def rms(x: Tensor, gain: Tensor, eps: float) -> Pair:
    if (kernels := usable(x, gain)) is not None:
        return kernels.rms_forward(x, gain, eps)
    found: Pair = elsewhere(x).rms_forward(x, gain, eps)
    return found


@operation("(Tensor dy, Tensor x, Tensor gain, Tensor r, Tensor? through) -> (Tensor, Tensor)")
def rms_backward(dy: Tensor, x: Tensor, gain: Tensor, r: Tensor, through: Tensor | None) -> Pair:
    if (kernels := usable(x, dy, gain, *_given(through))) is not None:
        return kernels.rms_backward(dy, x, gain, r, through)
    found: Pair = elsewhere(x).rms_backward(dy, x, gain, r, through)
    return found


# -- keys --------------------------------------------------------------------------------------------------------------
@operation("(Tensor v, Tensor queries, float? eps) -> (Tensor, Tensor)")
def keys(v: Tensor, queries: Tensor, eps: float | None) -> Pair:
    found: Pair = elsewhere(v).keys_forward(v, queries, eps)
    return found


@operation(
    "(Tensor grad, Tensor v, Tensor queries, Tensor r, Tensor logits, float? eps, Tensor? through) -> (Tensor, Tensor)"
)
def keys_backward(
    grad: Tensor, v: Tensor, queries: Tensor, r: Tensor, logits: Tensor, eps: float | None, through: Tensor | None
) -> Pair:
    found: Pair = elsewhere(v).keys_backward(grad, v, queries, r, logits, eps, through)
    return found


# -- mix ---------------------------------------------------------------------------------------------------------------
@operation("(Tensor logits, Tensor[] units, float whole) -> (Tensor, Tensor, Tensor[])")
def mix(logits: Tensor, units: Sequence[Tensor], whole: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    if (kernels := usable(logits, *units)) is not None:
        return kernels.mix_forward(logits.contiguous(), single(units), whole)
    found: tuple[Tensor, Tensor, list[Tensor]] = elsewhere(logits).mix_forward(logits, units, whole)
    return found


@operation(
    "(Tensor weights, Tensor[] units, Tensor[] grads, Tensor dlse, Tensor?[] through, float whole) -> (Tensor, Tensor[])"
)
def mix_backward(
    weights: Tensor, units: Sequence[Tensor], grads: Sequence[Tensor], dlse: Tensor, through: Sequence[Tensor | None],
    whole: float,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    if (kernels := usable(weights, *units, *grads, *_given(*through))) is not None:
        rooms = rooms_for([None] * len(units), units, through)
        return mix_backward_into(kernels, (weights, units, grads, dlse), rooms, whole), [room.place for room in rooms]
    found: tuple[Tensor, list[Tensor]] = elsewhere(weights).mix_backward(weights, units, grads, dlse, through, whole)
    return found


MixGradients = tuple[Tensor, Sequence[Tensor], Sequence[Tensor], Tensor]
"""Weights, units, gradients of the outputs and of the log-sum-exp."""


def mix_backward_into(kernels: Kernels, given: MixGradients, rooms: Sequence[Room], whole: float) -> Tensor:
    """In C: the gradient of the logits; those of the units are written to their rooms."""
    weights, units, grads, dlse = given
    joins: list[Tensor | None] = []
    for unit, room in zip(units, rooms, strict=True):
        joins += [None] * (1 if unit.dim() == 2 else unit.shape[1]) if room.joins is None else single([room.joins])
    places = single([room.place for room in rooms])
    return kernels.mix_backward(weights.contiguous(), single(units), grads, dlse.contiguous(), joins, places, whole)


# -- merge -------------------------------------------------------------------------------------------------------------
@operation(
    "(Tensor o, Tensor lse, Tensor b, Tensor query, float? eps, Tensor? gain, float norm_eps) -> (Tensor, Tensor)"
)
def merge(
    o: Tensor, lse: Tensor, b: Tensor, query: Tensor, eps: float | None, gain: Tensor | None, norm_eps: float
) -> Pair:
    if (kernels := usable(b, o, query, lse[:, None], *_given(gain))) is not None:
        return kernels.merge_forward(o, lse, b, query, eps, gain, norm_eps)
    found: Pair = elsewhere(b).merge_forward(o, lse, b, query, eps, gain, norm_eps)
    return found


@operation(
    "(Tensor grad, Tensor o, Tensor b, Tensor query, Tensor stats, float? eps, Tensor? gain, Tensor? through)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def merge_backward(
    grad: Tensor, o: Tensor, b: Tensor, query: Tensor, stats: Tensor, eps: float | None, gain: Tensor | None,
    through: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if (kernels := usable(b, o, query, grad, *_given(gain, through))) is not None:
        do, dlse, db, dquery, dgain = kernels.merge_backward(grad, o, b, query, stats, eps, gain, through)
    else:
        do, dlse, db, dquery, dgain = elsewhere(b).merge_backward(grad, o, b, query, stats, eps, gain, through)
    return do, dlse, db, dquery.clone(), dgain.clone() if gain is not None else query.new_empty(0)


# -- one read ----------------------------------------------------------------------------------------------------------
@operation(
    "(Tensor[] logits, Tensor[] sources, Tensor? gain, float eps, float mass, float whole) -> (Tensor, Tensor, Tensor)"
)
def attend(
    logits: Sequence[Tensor], sources: Sequence[Tensor], gain: Tensor | None, eps: float, mass: float, whole: float
) -> tuple[Tensor, Tensor, Tensor]:
    if (kernels := usable(*sources, *_given(gain))) is not None and logits[0].dtype == sources[0].dtype:
        return kernels.attend_forward(logits, sources, gain, eps, mass, whole)
    way = elsewhere(sources[0])
    found: tuple[Tensor, Tensor, Tensor] = way.attend_forward(logits, sources, gain, eps, mass, whole)
    return found


@operation(
    "(Tensor grad, Tensor weights, Tensor[] sources, Tensor? gain, Tensor scale, Tensor?[] through, float mass,"
    " float whole) -> (Tensor, Tensor[], Tensor)"
)
def attend_backward(
    grad: Tensor, weights: Tensor, sources: Sequence[Tensor], gain: Tensor | None, scale: Tensor,
    through: Sequence[Tensor | None], mass: float, whole: float,
) -> tuple[Tensor, list[Tensor], Tensor]:  # fmt: skip
    if (kernels := usable(grad, weights, *sources, *_given(gain, *through))) is not None:
        dsources = [grad.new_empty(v.shape) for v in sources]
        dlogits, dgain = kernels.attend_backward(grad, weights, sources, gain, scale, through, dsources, (mass, whole))
    else:
        way = elsewhere(grad)
        dlogits, dsources, dgain = way.attend_backward(grad, weights, sources, gain, scale, through, mass, whole)
    return dlogits, dsources, dgain.clone() if gain is not None else scale.new_empty(0)


# -- shapes ------------------------------------------------------------------------------------------------------------
def _numbers(x: Tensor, *shape: int) -> Tensor:
    """Statistics, in float32 or better."""
    return x.new_empty(shape, dtype=precise(x[:0]).dtype)


def _like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@rms.registered.register_fake
def _(x: Tensor, gain: Tensor, eps: float) -> Pair:
    return _like(x), _numbers(x, len(x))


@rms_backward.registered.register_fake
def _(dy: Tensor, x: Tensor, gain: Tensor, r: Tensor, through: Tensor | None) -> Pair:
    return _like(x), _like(gain)


@keys.registered.register_fake
def _(v: Tensor, queries: Tensor, eps: float | None) -> Pair:
    return _numbers(v, len(v), len(queries)), _numbers(v, len(v))


@keys_backward.registered.register_fake
def _(grad: Tensor, v: Tensor, queries: Tensor, *rest: object) -> Pair:
    return _like(v), _like(queries)


@mix.registered.register_fake
def _(logits: Tensor, units: Sequence[Tensor], whole: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    tokens, _, queries = logits.shape
    outputs = [units[0].new_empty(tokens, units[0].shape[-1]) for _ in range(queries)]
    return logits.new_empty(tokens, queries), _like(logits), outputs


@mix_backward.registered.register_fake
def _(weights: Tensor, units: Sequence[Tensor], *rest: object) -> tuple[Tensor, list[Tensor]]:
    return _like(weights), [_like(unit) for unit in units]


@merge.registered.register_fake
def _(o: Tensor, lse: Tensor, b: Tensor, *rest: object) -> Pair:
    return _like(b), _numbers(b, 4, len(b))


@merge_backward.registered.register_fake
def _(
    grad: Tensor, o: Tensor, b: Tensor, query: Tensor, stats: Tensor, eps: float | None, gain: Tensor | None,
    through: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        _like(o),
        stats.new_empty(len(b)),
        _like(b),
        _like(query),
        query.new_empty(0) if gain is None else _like(gain),
    )


@attend.registered.register_fake
def _(logits: Sequence[Tensor], sources: Sequence[Tensor], *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    v = sources[0]
    return _like(v), _numbers(v, len(v), len(sources)), _numbers(v, len(v))


@attend_backward.registered.register_fake
def _(
    grad: Tensor, weights: Tensor, sources: Sequence[Tensor], gain: Tensor | None, scale: Tensor, *rest: object
) -> tuple[Tensor, list[Tensor], Tensor]:
    empty = scale.new_empty(0) if gain is None else _like(gain)
    return weights.new_empty(len(sources), len(grad)), [_like(v) for v in sources], empty


# -- derivatives, for compilers: nothing is handed on there, for a compiler adds gradients itself ----------------------------
def _rms_kept(ctx: Context, inputs: tuple[Any, ...], output: Pair) -> None:
    ctx.save_for_backward(*inputs[:2], output[1])


def _rms_rule(ctx: Context, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *rms_backward.registered(dy, *ctx.saved_tensors, None), None


def _keys_kept(ctx: Context, inputs: tuple[Any, ...], output: Pair) -> None:
    ctx.save_for_backward(*inputs[:2], output[1], output[0])
    ctx.eps = inputs[2]


def _keys_rule(ctx: Context, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *keys_backward.registered(grad, *ctx.saved_tensors, ctx.eps, None), None


def _mix_kept(ctx: Context, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, list[Tensor]]) -> None:
    ctx.save_for_backward(output[1], *inputs[1])
    ctx.whole = inputs[2]


def _mix_rule(ctx: Context, dlse: Tensor, _: Tensor, grads: list[Tensor]) -> tuple[Tensor, list[Tensor], None]:
    weights, *units = ctx.saved_tensors
    dlogits, dunits = mix_backward.registered(weights, units, grads, dlse, [None] * len(units), ctx.whole)
    return dlogits, dunits, None


def _merge_kept(ctx: Context, inputs: tuple[Any, ...], output: Pair) -> None:
    o, _, b, query, ctx.eps, gain, _ = inputs
    ctx.save_for_backward(o, b, query, output[1], gain)


def _merge_rule(ctx: Context, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *rest, gain = ctx.saved_tensors
    do, dlse, db, dquery, dgain = merge_backward.registered(grad, *rest, ctx.eps, gain, None)
    return do, dlse, db, dquery, None, None if gain is None else dgain, None


def _attend_kept(ctx: Context, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], inputs[2], output[2], *inputs[1])
    ctx.share = inputs[4:]


def _attend_rule(ctx: Context, grad: Tensor, *_: Tensor) -> tuple[list[Tensor] | Tensor | None, ...]:
    weights, gain, scale, *sources = ctx.saved_tensors
    nothing = [None] * len(sources)
    dlogits, dsources, dgain = attend_backward.registered(grad, weights, sources, gain, scale, nothing, *ctx.share)
    return [*dlogits.unbind(0)], dsources, None if gain is None else dgain, None, None, None


rms.registered.register_autograd(_rms_rule, setup_context=_rms_kept)
keys.registered.register_autograd(_keys_rule, setup_context=_keys_kept)
mix.registered.register_autograd(_mix_rule, setup_context=_mix_kept)
merge.registered.register_autograd(_merge_rule, setup_context=_merge_kept)
attend.registered.register_autograd(_attend_rule, setup_context=_attend_kept)
