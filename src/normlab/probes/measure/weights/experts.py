"""Which experts a mixture uses, and whether their weights are alike in size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.inputs.losses import call
from normlab.probes.measure.table import Real
from normlab.probes.trace.hooks import Layout, slow_path


@dataclass(frozen=True)
class ExpertRow:
    """One expert of one layer: its share of the choices (1 / experts if all are used alike), its row in the router."""

    layer: int
    expert: int
    experts: int
    share: Real
    router_norm: Real


@torch.no_grad()
def read_experts(layout: Layout, batches: Sequence[object]) -> tuple[ExpertRow, ...]:
    """Routers are found by what they return: one number per expert, from a matrix of so many rows."""
    routers = {i: found for i, (_, layer) in enumerate(layout.layers) if (found := _router(layer)) is not None}
    if not routers:
        return ()
    config = getattr(layout.model, "config", None)
    chosen = int(getattr(config, "num_experts_per_tok", None) or 1)
    counts: dict[int, Tensor] = {}
    handles = []
    for index, (router, weight) in routers.items():
        experts = weight.shape[0]

        def count(
            _module: nn.Module, _args: object, output: object, index: int = index, experts: int = experts
        ) -> None:
            logits = _logits(output, experts)
            if logits is not None:
                picked = logits.topk(min(chosen, experts), -1).indices.flatten().bincount(minlength=experts)
                counts[index] = counts[index] + picked if index in counts else picked

        handles.append(router.register_forward_hook(count))
    with slow_path(handles):
        for batch in batches:
            call(layout.model, batch)
    rows = []
    for index, picks in sorted(counts.items()):
        norms = torch.linalg.vector_norm(routers[index][1].detach().float(), dim=1)
        shares = picks.double() / picks.sum().clamp_min(1)
        pairs = zip(shares.tolist(), norms.tolist(), strict=True)
        rows += [ExpertRow(index, expert, len(norms), share, norm) for expert, (share, norm) in enumerate(pairs)]
    return tuple(rows)


def _router(layer: nn.Module) -> tuple[nn.Module, Tensor] | None:
    """The module whose matrix has as many rows as there are experts."""
    counts = {p.shape[0] for p in layer.parameters() if p.dim() == 3}
    counts |= {
        len(child) for name, child in layer.named_modules() if isinstance(child, nn.ModuleList) and "expert" in name
    }
    for name, module in layer.named_modules():
        weight = getattr(module, "weight", None)
        named = name.rsplit(".", 1)[-1] in ("gate", "router", "classifier", "wg")
        if named and isinstance(weight, Tensor) and weight.dim() == 2 and weight.shape[0] in counts:
            return module, weight
    return None


def _logits(output: object, experts: int) -> Tensor | None:
    for item in output if isinstance(output, (tuple, list)) else (output,):
        if isinstance(item, Tensor) and item.is_floating_point() and item.shape[-1] == experts:
            return item.detach().reshape(-1, experts)
    return None
