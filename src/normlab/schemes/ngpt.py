"""nGPT: the stream lives on the unit sphere."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.schemes.base import Card, Demands, Frame, Growth, Scheme, SchemeConfig, Site
from normlab.schemes.norms import unit

# Rows of these live in the embedding space; `out` and `down` have their columns there.
READERS = ("query", "key", "value", "up", "gate")


class Ngpt(SchemeConfig):
    """h <- N(h + alpha (N(F(h)) - h)), N(x) = x / |x|"""

    card = Card(
        family="sphere",
        equation="h <- N(h + alpha (N(F(h)) - h)), N(x) = x/|x|",
        citation="Loshchilov et al. 2024, nGPT, arXiv 2410.01131; the scales follow the authors' code",
        growth="|h| = 1 at every layer: mean square 1/d",
        init="alpha 0.05 (stored as 1/sqrt(d), used as |alpha|); s_qk, s_u, s_v, s_z 1; every matrix on the sphere",
        own_start="rows of matrices, and columns of output matrices, have length 1; a branch moves the stream by 0.05",
        extra_parameters="M*d",
        branch_parameters="L*(d+2*F)+V",
        traffic="2d read, 1d written, one norm on the stream and one on the branch",
        traps=(
            "call model.after_step_() after each optimizer step: it renormalises every weight matrix",
            "no weight decay and no warm-up; softmax scale sqrt(d_head), not its inverse",
            "the authors do not tie the embeddings (tie_embeddings: false); grouped queries share the scale of their group",
            "the branches' learned scales s_qk, s_u, s_v and the logit scale s_z belong to attention, FFN and head",
        ),
    )
    name: Literal["ngpt"] = "ngpt"
    alpha: float = Field(0.05, gt=0, le=1, description="initial step on the sphere, of the order of 1/L")

    def build(self, frame: Frame) -> NgptStream:
        return NgptStream(self, frame)

    def demands(self) -> Demands:
        return Demands(qk_norm="unit", unit=True)

    def growth(self, frame: Frame) -> Growth:
        return [1 / frame.dim] * (len(frame.sites) + 1)


class NgptStream(Scheme):
    """h <- N(h + alpha (N(F(h)) - h))"""

    not_linear = "it keeps the stream on the unit sphere"
    config: Ngpt

    def __init__(self, config: Ngpt, frame: Frame) -> None:
        super().__init__(config, frame, pre=False)
        # Stored at the scale of the weights, so that one learning rate serves both.
        self.stored_scale = frame.dim**-0.5
        self.alpha = nn.Parameter(torch.empty(len(frame.sites), frame.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.stored_scale)

    def step_size(self, site: Site) -> Tensor:
        return (self.alpha[site.index] * (self.config.alpha / self.stored_scale)).abs()

    def open(self, x: Tensor) -> Tensor:
        return unit(x)

    def read(self, stream: Tensor, site: Site) -> tuple[Tensor, None]:
        return self.enter(stream, site), None

    def write(self, stream: Tensor, y: Tensor, carry: None, site: Site) -> Tensor:
        return unit(stream + self.step_size(site).to(stream.dtype) * (unit(y) - stream))

    def close(self, stream: Tensor) -> Tensor:
        return self._read(stream)

    def init_branch_(self, branch: Any, site: Site) -> None:
        for role, weight in branch.matrices().items():
            nn.init.normal_(weight, std=self.frame.dim**-0.5)
            _to_sphere_(weight, role)

    @torch.no_grad()
    def after_step_(self, model: Any) -> None:
        for branch in model.branches:
            for role, weight in branch.matrices().items():
                _to_sphere_(weight, role)
        for table in model.token_tables():
            _to_sphere_(table, "query")


@torch.no_grad()
def _to_sphere_(weight: Tensor, role: str) -> None:
    weight.copy_(unit(weight, dim=1 if role in READERS else 0))
