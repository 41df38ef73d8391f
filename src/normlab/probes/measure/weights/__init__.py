"""What the weights alone tell: sizes, ranks, copies and gains of every layer, and the two ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.probes.measure.weights.copies import (
    ALIKE,
    ExpertTwin,
    MatrixTwin,
    Twin,
    duplicates,
    expert_twins,
    matrix_twins,
    scale_twins,
)
from normlab.probes.measure.weights.ends import EmbeddingReading, input_embedding, output_embedding, read_rows
from normlab.probes.measure.weights.gains import GainRow, final_norms, gain_of, layer_norms, read_gain
from normlab.probes.measure.weights.matrices import MatrixRow, nonfinite_weights, read_bias, read_matrix
from normlab.probes.trace.hooks import Layout

__all__ = [
    "ALIKE",
    "EmbeddingReading",
    "ExpertTwin",
    "GainRow",
    "MatrixRow",
    "MatrixTwin",
    "Twin",
    "WeightReadings",
    "duplicates",
    "expert_twins",
    "gain_of",
    "input_embedding",
    "matrix_twins",
    "nonfinite_weights",
    "output_embedding",
    "read_weights",
    "scale_twins",
]


@dataclass(frozen=True)
class WeightReadings:
    """Everything that was read from the weights."""

    matrices: tuple[MatrixRow, ...] = ()
    gains: tuple[GainRow, ...] = ()
    embedding: EmbeddingReading | None = None
    head: EmbeddingReading | None = None


@torch.no_grad()
def read_weights(layout: Layout, used: Tensor | None = None) -> WeightReadings:
    """Matrices and gains of every layer, the norm behind the last one, and the embedding rows that are `used`."""
    matrices: list[MatrixRow] = []
    gains: list[GainRow] = []
    for index, (_, layer) in enumerate(layout.layers):
        for name, parameter in layer.named_parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.dim() == 2:
                matrices.append(read_matrix(index, name, parameter))
            elif parameter.dim() == 1 and name.endswith("bias"):
                matrices.append(read_bias(index, name, parameter))
            elif parameter.dim() == 3 and min(parameter.shape[1:]) > 4:  # kernels of convolutions are no experts
                matrices += [read_matrix(index, name, part, expert) for expert, part in enumerate(parameter)]
    gains += [read_gain(index, name, norm) for index, name, norm in layer_norms(layout)]
    gains += [read_gain(-1, name, module) for name, module in final_norms(layout)]
    table, head = input_embedding(layout.model), output_embedding(layout.model)
    first = None if table is None or used is None else read_rows(table.weight, used, layout.model)
    last = None if head is None or used is None else read_rows(head, used, None)
    return WeightReadings(tuple(matrices), tuple(gains), first, last)
