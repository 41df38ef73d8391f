"""Known ways to get a scheme wrong, as changes of our own: whichever gives a port's numbers is its mistake.

Each is one that has been made in public code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from normlab.schemes import Scheme, Site
from normlab.schemes.base import Stream, applied
from normlab.schemes.depth_stream import DepthAttention
from normlab.schemes.hyper import Streams

S = TypeVar("S", bound=Scheme)


def mutants(scheme: Scheme) -> Iterator[tuple[str, Scheme]]:
    """Copies of the scheme, each with one known mistake, and the mistake in words."""
    yield from _changed(scheme, {"a norm's gain is forgotten": _no_gains})
    if isinstance(scheme, Streams):
        of_streams = {
            "the mixing (comb, H_res) is not transposed": _mix(lambda res: res.transpose(-1, -2)),
            "the mixing (H_res) is computed but not applied": _mix(lambda res: torch.eye(res.shape[-1]).to(res)),
            "the streams are only averaged: H_res uniform": _mix(lambda res: torch.full_like(res, 1 / res.shape[-1])),
            "post lacks its factor of 2": _post(0.5),
            "the output read is missing: the plain sum of the streams": _close(lambda x: x.sum(-2)),
            "the output read is missing: the mean of the streams": _close(lambda x: x.mean(-2)),
            "the output read is missing: stream 0 alone": _close(lambda x: x[..., 0, :]),
        }
        yield from _changed(scheme, of_streams)
    if isinstance(scheme, DepthAttention):
        of_depth = {
            "the key norm's gain is forgotten": _no_key_gain,
            "keys are not normalised": _keys_raw,
            "logits are divided by sqrt(d)": _scaled_logits,
            "the output read is missing: the plain sum of the sources": _sum_output,
            "the output read is missing: the newest source alone": _newest_output,
        }
        yield from _changed(scheme, of_depth)


def _changed(scheme: S, kinds: Mapping[str, Callable[[S], None]]) -> Iterator[tuple[str, S]]:
    for words, change in kinds.items():
        made = copy.deepcopy(scheme)
        try:
            with torch.no_grad():
                change(made)
        except AttributeError:  # the options of this scheme have no such part
            continue
        yield words, made


def _no_gains(scheme: Scheme) -> None:
    for module in scheme.modules():
        if type(module).__name__ in ("RMSNorm", "LayerNorm"):
            nn.init.ones_(module.get_parameter("weight"))


def _mix(change: Callable[[Tensor], Tensor]) -> Callable[[Streams], None]:
    def apply(scheme: Streams) -> None:
        before = scheme.coefficients

        def coefficients(streams: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
            pre, post, res = before(streams, site)
            return pre, post, change(res).expand_as(res)

        scheme.coefficients = coefficients  # type: ignore[method-assign]

    return apply


def _post(factor: float) -> Callable[[Streams], None]:
    def apply(scheme: Streams) -> None:
        before = scheme.coefficients

        def coefficients(streams: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
            pre, post, res = before(streams, site)
            return pre, post * factor, res

        scheme.coefficients = coefficients  # type: ignore[method-assign]

    return apply


def _close(read: Callable[[Tensor], Tensor]) -> Callable[[Streams], None]:
    def apply(scheme: Streams) -> None:
        def close(stream: Stream) -> Tensor:
            return applied(scheme.final, read(stream if isinstance(stream, Tensor) else stream.streams))

        scheme.close = close  # type: ignore[method-assign]

    return apply


def _no_key_gain(scheme: DepthAttention) -> None:
    scheme.key_gain.fill_(1.0)


def _scaled_logits(scheme: DepthAttention) -> None:
    scheme.queries.mul_(scheme.frame.dim**-0.5)


def _keys_raw(scheme: DepthAttention) -> None:
    scheme.config = scheme.config.replace(key_norm=False)
    scheme.queries.mul_(scheme.key_gain)


def _sum_output(scheme: DepthAttention) -> None:
    scheme.close = lambda stream: applied(scheme.final, torch.stack(stream.all).sum(0))  # type: ignore[method-assign]


def _newest_output(scheme: DepthAttention) -> None:
    scheme.close = lambda stream: applied(scheme.final, stream.all[-1])  # type: ignore[method-assign]
