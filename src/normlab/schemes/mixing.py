"""The depth-mixing matrix: h_l = sum_i M[l, i] v_i, for every scheme whose h is linear in its sources.

v_0 is the embedding, v_i the contribution of branch i (behind its own output norm and gain); row l is what branch l + 1
reads before its norm, the last row what the head reads. Data-dependent coefficients are held at their values.

M is read off with autograd: the recorded pass is cut at the sources, so its graph is the residual path alone, and the
gradient of <h_l, 1> with respect to v_i is M[l, i] times the vector of ones, for every token at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlab.errors import UnsupportedError
from normlab.schemes.base import Scheme


@dataclass(frozen=True)
class DepthMixing:
    """The matrix M with h_l = sum_i M[l, i] v_i, and the reads h and sources v that it belongs to."""

    matrix: Tensor  # [batch, time, reads, sources]
    reads: Tensor  # [reads, batch, time, dim]
    sources: Tensor  # [sources, batch, time, dim]

    def reconstruct(self) -> Tensor:
        """sum_i M[l, i] v_i, to be compared with `reads`."""
        return torch.einsum("btls,sbtd->lbtd", self.matrix, self.sources)

    @property
    def error(self) -> float:
        """Largest relative error of the reconstruction, over reads."""
        gap = (self.reconstruct() - self.reads).flatten(1).norm(dim=1)
        return float((gap / self.reads.flatten(1).norm(dim=1).clamp_min(1e-30)).max())


def depth_mixing(scheme: Scheme, run: Callable[[], Any]) -> DepthMixing:
    """`run()` is one forward pass of a model that `scheme` drives."""
    if scheme.not_linear is not None:
        raise UnsupportedError(
            f"{scheme.config.name} has no depth-mixing matrix: {scheme.not_linear}, so what a branch reads is not a "
            "linear mix of branch outputs"
        )
    with torch.inference_mode(False), torch.enable_grad(), scheme.taped(cut=True) as tape:
        run()
    sources, reads = tape.sources, tape.reads
    batch, time, _ = sources[0].shape
    matrix = sources[0].new_zeros(batch, time, len(reads), len(sources))
    for row, h in enumerate(reads):
        if not h.requires_grad:
            continue
        gradients = torch.autograd.grad(h, sources, torch.ones_like(h), retain_graph=True, allow_unused=True)
        for column, gradient in enumerate(gradients):
            if gradient is not None:
                _expect_one_weight(gradient, scheme)
                matrix[:, :, row, column] = gradient.mean(-1)
    return DepthMixing(matrix, torch.stack(reads).detach(), torch.stack(sources).detach())


def _expect_one_weight(gradient: Tensor, scheme: Scheme) -> None:
    """Every channel of a source must have the same weight in h; depth heads have one each."""
    spread = (gradient.amax(-1) - gradient.amin(-1)).max()
    if spread > 100 * torch.finfo(gradient.dtype).eps * gradient.abs().max():
        raise UnsupportedError(f"{scheme.config.name} has no single depth-mixing matrix: its weights differ by channel")
