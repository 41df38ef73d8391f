"""How well a matrix fits what it reads: trained ones are turned toward their input, noise and strangers are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.measure.table import Real
from normlab.probes.trace.hooks import Layout, slow_path


@dataclass(frozen=True)
class ResponseRow:
    """|W x|^2 over what a matrix of independent entries of that size would give from the same x, over all tokens."""

    layer: int
    name: str
    response: Real


@torch.no_grad()
def read_response(layout: Layout, run: Callable[[], object]) -> tuple[ResponseRow, ...]:
    """One small pass over the linear maps of every layer; the first call of each counts."""
    rows: dict[tuple[int, str], ResponseRow] = {}
    handles = []
    for index, (_, layer) in enumerate(layout.layers):
        for name, module in layer.named_modules():
            if not isinstance(module, nn.Linear) or not module.weight.is_floating_point():
                continue

            def look(
                linear: nn.Module, args: tuple[object, ...], out: object, key: tuple[int, str] = (index, name)
            ) -> None:
                if key not in rows and args and isinstance(args[0], Tensor) and isinstance(out, Tensor):
                    rows[key] = ResponseRow(*key, _response(linear, args[0].detach(), out.detach()))

            handles.append(module.register_forward_hook(look))
    with slow_path(handles):
        run()
    return tuple(rows[key] for key in sorted(rows))


def _response(linear: nn.Module, x: Tensor, out: Tensor) -> float:
    weight, bias = linear.weight.detach().float(), linear.bias  # type: ignore[operator]
    y = out.float() if bias is None else out.float() - bias.detach().float()  # type: ignore[operator]
    noise = weight.square().mean() * x.float().square().sum() * len(weight)
    return float(y.square().sum() / noise.clamp_min(1e-30))
