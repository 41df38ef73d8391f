"""Known ways to get a scheme wrong, as changes of our own: whichever gives a port's numbers is its mistake.

Each is one that has been made in public code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normlab.schemes import Scheme
from normlab.schemes.depth_stream import DepthAttention
from normlab.schemes.hyper import Streams

Change = Callable[[Any], None]


def mutants(scheme: Scheme) -> Iterator[tuple[str, Scheme]]:
    """Copies of the scheme, each with one known mistake, and the mistake in words."""
    kinds: dict[str, Change] = {"a norm's gain is forgotten": _no_gains}
    if isinstance(scheme, Streams):
        kinds |= {
            "the mixing (comb, H_res) is not transposed": _mix(lambda res: res.transpose(-1, -2)),
            "the mixing (H_res) is computed but not applied": _mix(lambda res: torch.eye(res.shape[-1]).to(res)),
            "the streams are only averaged: H_res uniform": _mix(lambda res: torch.full_like(res, 1 / res.shape[-1])),
            "post lacks its factor of 2": _post(0.5),
            "the output read is missing: the plain sum of the streams": _close(lambda x: x.sum(-2)),
            "the output read is missing: the mean of the streams": _close(lambda x: x.mean(-2)),
            "the output read is missing: stream 0 alone": _close(lambda x: x[..., 0, :]),
        }
    if isinstance(scheme, DepthAttention):
        kinds |= {
            "the key norm's gain is forgotten": _no_key_gain,
            "keys are not normalised": _keys_raw,
            "logits are divided by sqrt(d)": _scaled_logits,
            "the output read is missing: the plain sum of the sources": _sum_output,
            "the output read is missing: the newest source alone": _newest_output,
        }
    for words, change in kinds.items():
        made = copy.deepcopy(scheme)
        try:
            with torch.no_grad():
                change(made)
        except AttributeError:  # the options of this scheme have no such part
            continue
        yield words, made


def _no_gains(scheme: Any) -> None:
    for module in scheme.modules():
        if type(module).__name__ in ("RMSNorm", "LayerNorm"):
            nn.init.ones_(module.weight)


def _mix(change: Callable[[Tensor], Tensor]) -> Change:
    def apply(scheme: Any) -> None:
        before = scheme.coefficients

        def coefficients(streams: Tensor, site: Any) -> tuple[Tensor, Tensor, Tensor]:
            pre, post, res = before(streams, site)
            return pre, post, change(res).expand_as(res)

        scheme.coefficients = coefficients

    return apply


def _post(factor: float) -> Change:
    def apply(scheme: Any) -> None:
        before = scheme.coefficients
        scheme.coefficients = lambda streams, site: tuple(
            c * factor if i == 1 else c for i, c in enumerate(before(streams, site))
        )

    return apply


def _close(read: Callable[[Tensor], Tensor]) -> Change:
    def apply(scheme: Any) -> None:
        scheme.close = lambda stream: scheme.final(read(stream if isinstance(stream, Tensor) else stream.streams))

    return apply


def _no_key_gain(scheme: Any) -> None:
    scheme.key_gain.fill_(1.0)


def _scaled_logits(scheme: Any) -> None:
    scheme.queries.mul_(scheme.frame.dim**-0.5)


def _keys_raw(scheme: Any) -> None:
    scheme.config = scheme.config.replace(key_norm=False)
    scheme.queries.mul_(scheme.key_gain)


def _sum_output(scheme: Any) -> None:
    scheme.close = lambda stream: scheme.final(torch.stack(stream.all).sum(0))


def _newest_output(scheme: Any) -> None:
    scheme.close = lambda stream: scheme.final(stream.all[-1])
