"""What n streams, their mixings and their gates are like behind one layer: the same numbers for a diagnosis and a monitor."""

from __future__ import annotations

import torch
from torch import Tensor

from normlab.probes.measure import metrics
from normlab.probes.trace.hooks import Record


def stream_numbers(record: Record) -> dict[str, Tensor]:
    """Columns of `LayerRow`, as scalars on the model's device; empty for a model of one stream."""
    if record.streams is None:
        return {}
    found = {
        "homogenisation": metrics.homogenisation(record.streams),
        "effective_streams": metrics.effective_streams(record.streams),
        "smallest_stream": metrics.smallest_stream(record.streams),
    }
    if record.mixings and record.mixings[0].shape[-1] > 1:
        found["mixing_error"] = torch.stack([metrics.mixing_error(mixing) for mixing in record.mixings]).max()
        found["mixing_keeps"] = torch.stack([metrics.mixing_keeps(mixing) for mixing in record.mixings]).min()
    writes = [gate.write for gate in record.gates if gate.write is not None]
    if writes:
        found["write_gate"] = torch.stack([write.float().abs().mean() for write in writes]).min()
    stuck = [_stuck(gate, top) for each in record.gates for gate, top in ((each.read, 1.0), (each.write, 2.0))]
    known = [share for share in stuck if share is not None]
    if known:
        found["stuck_gates"] = torch.stack(known).max()
    if record.head is not None:
        found["head_share"] = metrics.largest_share(record.head)
    return found


def _stuck(gate: Tensor | None, top: float) -> Tensor | None:
    """The share of gates within a hundredth of 0 or of `top`: there a sigmoid passes no gradient."""
    if gate is None:
        return None
    near = (gate.float() < 0.01 * top) | (gate.float() > 0.99 * top)
    return near.float().mean()
