"""What several subjects need: attention computed by a kernel of our own, tokens that a model reads, norms by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ..anatomy import Layer, gain
from ..blind_faults.tools import handed_in
from ..protocol import Patient

KERNEL = "normlab_clinic_fifth"
Weights = Callable[[Tensor, Tensor], Tensor]  # (scores, who may be seen) -> weights, all [rows, heads, tokens, keys]


def visible(mask: Tensor | None, scores: Tensor) -> Tensor:
    """Who may be seen; no mask means a causal one."""
    if mask is None:
        tokens, keys = scores.shape[-2:]
        return torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens).expand(scores.shape)
    seen = mask if mask.dtype == torch.bool else mask > -1.0
    return seen[..., : scores.shape[-1]].expand(scores.shape)


def kernel(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attention with the module's own way from scores to weights."""
    scale = query.shape[-1] ** -0.5 if options.get("scaling") is None else options["scaling"]
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    scores = query @ key.transpose(-1, -2) * scale
    weights = module.weigh(scores.float(), visible(attention_mask, scores)).to(value)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def weigh_by(patient: Patient, weigh: Weights) -> None:
    """Every layer of a decoder turns scores into weights so. Its attention has a configuration of its own."""
    AttentionInterface.register(KERNEL, kernel)
    for layer in patient.body.layers:
        attention: Any = layer.attention
        attention.config = copy.copy(attention.config)
        attention.config._attn_implementation_internal = KERNEL
        attention.weigh = weigh


def hidden(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, -torch.inf)


class Read:
    """The tokens that the model read last."""

    def __init__(self, patient: Patient) -> None:
        self.tokens: Tensor | None = None
        patient.body.embedding.register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.tokens = args[0]


class Given:
    """What a module was handed last."""

    def __init__(self, module: nn.Module) -> None:
        self.value: Tensor | None = None
        module.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.value = handed_in(args, kwargs)


def second(layer: Layer) -> nn.Linear:
    """The linear layer of an FFN that writes to the stream; experts have none."""
    return getattr(layer.ffn, "down_proj", layer.ffn)


def norms_of(patient: Patient) -> list[nn.Module]:
    """Those of the layers, and the final one."""
    found = [norm for layer in patient.body.layers for norm in layer.norms]
    return found if patient.body.final_norm is None else [*found, patient.body.final_norm]


def epsilon(norm: Any) -> float:
    return next(getattr(norm, name) for name in ("variance_epsilon", "eps") if hasattr(norm, name))


def finished(norm: Any, unit: Tensor) -> Tensor:
    """Gain and bias behind the division."""
    bias = getattr(norm, "bias", None)
    return unit * gain(norm) + (0.0 if bias is None else bias)
