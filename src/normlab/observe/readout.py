"""What can be read out of the end of a network: linear read-outs, and each source's share in the last state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.errors import UnsupportedError
from normlab.model import Transformer
from normlab.observe.portrait import walk


def explained(features: Tensor, target: Tensor, *, ridge: float = 1e-6) -> float:
    """R^2, on the second half of the rows, of the best linear map (fitted to the first half) from features to target.

    All in float64; a constant is allowed for. 1: the target can be read out; 0: no better than its mean.
    """
    x, y = features.double().flatten(0, -2), target.double().flatten(0, -2)
    half = len(x) // 2
    mean_x, mean_y = x[:half].mean(0), y[:half].mean(0)
    a, b = x[:half] - mean_x, y[:half] - mean_y
    gram = a.T @ a
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weights = torch.linalg.solve(gram, a.T @ b)
    predicted = (x[half:] - mean_x) @ weights + mean_y
    missed = (y[half:] - predicted).square().sum()
    total = (y[half:] - y[half:].mean(0)).square().sum()
    return float(1 - missed / total)


@torch.no_grad()
def readouts(model: Transformer, tokens: Tensor) -> tuple[float, ...]:
    """For each layer: how much of what its two branches put out can be read from what the head reads, before the norm."""
    seen = walk(model, lambda: model.features(tokens))
    end, outputs = seen.reads[-1], seen.outputs
    per_layer = len(outputs) // model.config.depth
    layers = [outputs[i : i + per_layer] for i in range(0, len(outputs), per_layer)]
    return tuple(sum(explained(end, v) for v in layer) / per_layer for layer in layers)


@dataclass(frozen=True)
class FinalShares:
    """How the last state is made up, averaged over tokens."""

    largest: float
    """The largest share of one source, <c_i, h> / |h|^2. All shares of a token add up to 1."""
    effective: float
    """1 / sum of squared sizes: how many sources of equal size would be spread as these are."""
    sources: int


def final_shares(contributions: Tensor) -> FinalShares:
    """Of [batch, time, sources, dim], see `final_contributions`."""
    whole = contributions.sum(2)
    shares = torch.einsum("btsd,btd->bts", contributions, whole) / whole.square().sum(-1, keepdim=True)
    sizes = contributions.norm(dim=-1)
    sizes = sizes / sizes.sum(-1, keepdim=True)
    return FinalShares(
        float(shares.amax(-1).mean()), float((1 / sizes.square().sum(-1)).mean()), int(contributions.shape[2])
    )


def layer_shares(contributions: Tensor, layers: int) -> Tensor:
    """[batch, time, layers]: <c_l, h> / |h|^2 with c_l what the branches of layer l contribute together.

    With the embedding's share, which is left out here, they add up to 1.
    """
    whole = contributions.sum(2)
    by_layer = contributions[:, :, 1:].unflatten(2, (layers, -1)).sum(3)
    return torch.einsum("btld,btd->btl", by_layer, whole) / whole.square().sum(-1, keepdim=True)


@torch.no_grad()
def final_contributions(model: Transformer, tokens: Tensor) -> Tensor:
    """[batch, time, sources, dim]: what the embedding and each branch contribute to what the head reads, before its norm.

    They add up to it. A norm on the stream (Post-Norm) scales all that came before it alike: by its gain over the rms.
    """
    if model.scheme.not_linear is None:
        parts = model.depth_mixing_parts(tokens)
        return torch.einsum("bts,sbtd->btsd", parts.matrix[:, :, -1].double(), parts.sources.double())
    seen = walk(model, lambda: model.features(tokens))
    norms = getattr(model.scheme, "out", ())
    if len(seen.summed) != len(seen.outputs) or model.config.norm != "rmsnorm" or seen.embedding is None:
        raise UnsupportedError(
            f"{model.config.scheme.name} with {model.config.norm} does not tell what each branch adds"
        )
    found = seen.embedding.double()[None]
    for v, summed, norm in zip(seen.sources[1:], seen.summed, norms, strict=True):
        found = torch.cat([found, v.double()[None]])
        found = found * norm.weight.double() * torch.rsqrt(summed.double().square().mean(-1, keepdim=True) + norm.eps)
    return found.permute(1, 2, 0, 3)
