"""Layers without a mask: linear ones, embeddings, and the feed-forward branch, gated (SwiGLU, GEGLU) or plain (GELU, ReLU).

They leave their weights to the model's one initialisation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab.model.config import TransformerConfig
from normlab.schemes import Demands
from normlab.schemes.norms import make_norm


class Linear(nn.Linear):
    """nn.Linear whose construction draws no random numbers: the scheme fills the matrix (`init_branch_`)."""

    def reset_parameters(self) -> None:
        pass

    def reset_bias_(self) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """nn.Embedding whose construction draws no random numbers."""

    def reset_parameters(self) -> None:
        pass


class FeedForward(nn.Module):
    """down( act(gate x) * up x ), or down( act(up x) )"""

    def __init__(self, config: TransformerConfig, demands: Demands) -> None:
        super().__init__()
        self.kind = config.ffn
        self.gated = config.ffn in ("swiglu", "geglu")
        self.hidden = hidden = config.size_of_ffn
        self.up = Linear(config.dim, hidden * (2 if self.gated else 1), bias=config.bias)  # gate and up, in one product
        self.down = Linear(hidden, config.dim, bias=config.bias)
        self.inner_norm = make_norm(config.norm, hidden, eps=config.eps) if demands.inner_norm else None
        self.unit_scale = config.dim**0.5  # nGPT: brings unit-norm inputs back to the range of the activation
        self.scale = nn.Parameter(torch.empty(self.up.out_features)) if demands.unit else None

    def matrices(self) -> dict[str, Tensor]:
        if not self.gated:
            return {"up": self.up.weight.data, "down": self.down.weight.data}
        gate, up = self.up.weight.data.chunk(2)
        return {"gate": gate, "up": up, "down": self.down.weight.data}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.up.reset_bias_()
        self.down.reset_bias_()
        if self.scale is not None:
            self.scale.fill_(1.0)

    def forward(self, x: Tensor, shared: object = None) -> Tensor:
        z = self.up(x)
        if self.scale is not None:
            z = z * (self.scale * self.unit_scale).to(z.dtype)
        if self.gated:
            gate, up = z.chunk(2, dim=-1)
            z = (F.silu(gate) if self.kind == "swiglu" else F.gelu(gate, approximate="tanh")) * up
        elif self.kind == "relu":
            z = F.relu(z)
        else:
            z = F.gelu(z, approximate="tanh" if self.kind == "gelu_tanh" else "none")
        return self.down(z if self.inner_norm is None else self.inner_norm(z))
