"""The discrete layers that the dynamics are the limit of, in torch, so that the signal can be sent back through them.

    post_norm, sqrt_scaling, deep_norm, admin, keel   x <- N(x + h c A(x))
    pre_norm, ln_scaling                              x <- x + h c A(N x)
    peri_norm                                         x <- x + h N(A(N x))
    ngpt                                              x <- N(x + h alpha (N(A(x)) - x))
    res_norm                                          x <- x + h N(A(x)), queries and keys normalised

N divides by the Euclidean norm. h = 1 is the paper's layer; h -> 0 is the flow. With an FFN a layer is the attention
branch and then the FFN branch, by the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normlab.dynamics.fields import Custom, Field, Stage, inverse_temperature, scheme_field
from normlab.dynamics.flow.simulate import Setting, start_tokens
from normlab.dynamics.flow.weights import Draw, Weights
from normlab.errors import UnsupportedError


@dataclass(frozen=True)
class NetworkLayers:
    """By layer (0 is the input), of shape (schemes, seeds, depth + 1): 1 - mean cosine, mean norm, gradient norm.

    gradient: root mean square over tokens of |d readout / d x_l|, the readout being a random direction for each
    token's final direction. It is what back-propagation carries to layer l.
    """

    names: tuple[str, ...]
    t: np.ndarray
    gap: np.ndarray
    radius: np.ndarray
    gradient: np.ndarray

    @property
    def cosine(self) -> np.ndarray:
        return 1.0 - self.gap


def layers(
    schemes: str | Field | Sequence[str | Field],
    setting: Setting | None = None,
    *,
    step: float = 1.0,
    **changes: object,
) -> NetworkLayers:
    """Apply the layer maps up to t = setting.time, `step` of time per layer (weights change at integers if fresh)."""
    setting = (setting or Setting()).replace(**changes) if changes else (setting or Setting())
    fields = tuple(scheme_field(s) for s in ([schemes] if isinstance(schemes, (str, Field)) else schemes))
    depth = round(setting.time / step)
    out = np.empty((3, len(fields), len(setting.seeds), depth + 1))
    for i, row in enumerate(fields):
        for j, seed in enumerate(setting.seeds):
            out[:, i, j] = _one(row, setting, seed, depth, step)
    times = np.arange(depth + 1) * step
    return NetworkLayers(tuple(f.name for f in fields), times, *out)


def _one(row: Field, setting: Setting, seed: int, depth: int, step: float) -> np.ndarray:
    draw = Draw(setting.weights, setting.d, setting.heads, setting.ffn)
    theta = start_tokens(setting, seed)
    x = torch.tensor(theta * setting.r0, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(setting.n, setting.n, dtype=torch.bool).tril() if setting.causal else None
    states, drawn, index = [x], draw.layer(seed, 0), 0
    for layer in range(depth):
        t = layer * step
        if int(t + 1e-9) != index and setting.weights == "fresh":
            index = int(t + 1e-9)
            drawn = draw.layer(seed, index)
        x = apply_layer(x, row.stage(t + 1e-12), t, step, drawn, setting.beta, mask)
        states.append(x)
    readout = torch.tensor(np.random.default_rng([seed, 11]).standard_normal(x.shape) / setting.d**0.5)
    grads = torch.autograd.grad((_unit(x) * readout).sum(), states)
    gap = [float(_gap(state.detach())) for state in states]
    radius = [float(state.detach().norm(dim=-1).mean()) for state in states]
    return np.array([gap, radius, [float(g.square().sum(-1).mean().sqrt()) for g in grads]])


def apply_layer(
    x: Tensor, stage: Stage | Custom, t: float, step: float, weights: Weights, beta: float, mask: Tensor | None
) -> Tensor:
    """One layer: attention, then the FFN where there is one."""
    if not isinstance(stage, Stage):
        raise UnsupportedError("a scheme of your own gives s and r', from which its discrete layer cannot be told")
    heat = inverse_temperature(stage, t, beta)
    x = _join(x, _attention(x, stage, weights, heat, mask), stage, t, step)
    if weights.up is not None and weights.down is not None:
        up, down = torch.from_numpy(weights.up), torch.from_numpy(weights.down)
        x = _join(x, torch.relu(_unit(x) @ up.T) @ down.T, stage, t, step)
    return x


def _join(x: Tensor, f: Tensor, stage: Stage, t: float, step: float) -> Tensor:
    gain = step * stage.gain(t)
    if stage.stream == "free":
        return x + gain * (_unit(f) if stage.branch == "unit" else f)
    x = _unit(x)
    return _unit(x + gain * (_unit(f) - x)) if stage.branch == "unit" else _unit(x + gain * f)


def _attention(x: Tensor, stage: Stage, weights: Weights, heat: float, mask: Tensor | None) -> Tensor:
    theta = _unit(x)
    values = x if stage.values == "raw" else theta
    if weights.logits is None or weights.values is None:
        return _softmax(heat * theta @ theta.T, mask) @ values
    heads = zip(torch.from_numpy(weights.logits), torch.from_numpy(weights.values), strict=True)
    total = torch.zeros_like(theta)
    for score, value in heads:
        total = total + (_softmax(heat * (theta @ score) @ theta.T, mask) @ values) @ value.T
    return total


def _softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    return torch.softmax(logits if mask is None else logits.masked_fill(~mask, -torch.inf), dim=-1)


def _unit(x: Tensor) -> Tensor:
    result: Tensor = x / x.norm(dim=-1, keepdim=True)
    return result


def _gap(x: Tensor) -> Tensor:
    """1 - mean pairwise cosine."""
    theta = _unit(x)
    return (theta - theta.mean(0)).square().sum() / (len(x) - 1)
