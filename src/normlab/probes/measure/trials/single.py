"""Accidents of one layer."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from normlab.probes.measure.trials.changes import (
    DOWN,
    KEYS,
    QUERIES,
    VALUES,
    SwappedPair,
    Trial,
    asked,
    branches_of,
    find,
    gate_and_up,
    replaced,
    same_shapes,
    scaled,
    swapped,
)
from normlab.probes.measure.weights.gains import gain_of, layer_norms
from normlab.probes.trace.hooks import Layout, output_projection
from normlab.probes.trace.roles import module_path

SHALLOW = 8  # layers: up to here every two are exchanged on trial, then neighbours


ODD = 2.0  # times the median gain of the layers around, from which on it is tried what they would do


def single_layers(layout: Layout, suspects: Sequence[int]) -> Iterator[Trial]:
    """What a wrong conversion does to one layer: matrices exchanged, transposed, with displaced heads, of wrong sign."""
    depth = len(layout.layers)
    for index, (_, layer) in enumerate(layout.layers):
        if index not in suspects:
            continue
        here = (index,)
        query, key, value = (find(layer, names) for names in (QUERIES, KEYS, VALUES))
        if query is not None and key is not None and query.weight.shape == key.weight.shape:
            yield Trial(f"with query and key of layer {index} exchanged", "attention", here, swapped([(query, key)]))
        for word, matrix in (("query", query), ("key", key), ("value", value)):
            if matrix is not None and matrix.weight.shape[0] == matrix.weight.shape[1]:
                turned = replaced(matrix, matrix.weight.detach().T.contiguous())
                yield Trial(f"with the {word} matrix of layer {index} transposed", "weights", here, turned)
        if query is not None:
            for factor in (0.25, 4.0, -1.0):
                what = f"with the queries of layer {index} times {factor:g}"
                yield Trial(what, "attention", here, scaled(asked(layer, query), factor))
        if key is not None and value is not None and key.weight.shape == value.weight.shape:
            yield Trial(f"with key and value of layer {index} exchanged", "attention", here, swapped([(key, value)]))
        if (gates := gate_and_up(layer)) and depth > 1:
            yield Trial(f"with gate and up of layer {index} exchanged", "weights", here, swapped(gates))
        for other in range(index + 1, depth if depth <= SHALLOW else min(depth, index + 3)):
            if same_shapes(layer, layout.layers[other][1]):
                pair: list[SwappedPair] = [(layer, layout.layers[other][1])]
                yield Trial(f"with layers {index} and {other} exchanged", "weights", (index, other), swapped(pair))
        down = find(layer, DOWN)
        if down is not None and down.weight.shape[1] % 2 == 0:
            halves = replaced(down, down.weight.detach().roll(down.weight.shape[1] // 2, 1))
            yield Trial(
                f"with the halves of the FFN's second matrix of layer {index} exchanged", "weights", here, halves
            )
        for branch in branches_of(layout, layer):
            added = layer.get_submodule(module_path(branch.added))
            word = {"ffn": "FFN"}.get(branch.kind, branch.kind)
            yield Trial(f"with the {word} of layer {index} turned round", "branches", here, scaled(added, -1.0))
            yield Trial(f"without the {word} of layer {index}", "branches", here, scaled(added, 0.0))
            for factor in (0.2, 5.0):
                what = f"with the {word} of layer {index} times {factor:g}"
                yield Trial(what, "branches", here, scaled(added, factor))
            out = output_projection(layer, branch) if branch.kind == "attention" else None
            if out is not None and isinstance(out, nn.Linear):
                yield from _projections(layout, out, index)


def odd_gains(layout: Layout) -> Iterator[Trial]:
    """Gains of another size than those of the layers around: set to the median of these."""
    table: dict[str, dict[int, nn.Module]] = {}
    for index, name, norm in layer_norms(layout):
        table.setdefault(name, {})[index] = norm
    for name, norms in table.items():
        for index, norm in norms.items():
            near = [norms[i] for i in range(index - 2, index + 3) if i != index and i in norms]
            if len(near) < 2 or any(gain_of(other).shape != gain_of(norm).shape for other in near):
                continue
            usual = statistics.median(float(gain_of(other).abs().median()) for other in near)
            own = float(gain_of(norm).abs().median())
            if not 1 / ODD < own / max(usual, 1e-30) < ODD:
                middle = torch.stack([other.get_parameter("weight").data for other in near]).median(0).values
                what = f"with the gain of {name} in layer {index} as in its neighbours"
                yield Trial(what, "weights", (index,), replaced(norm, middle))


def _projections(layout: Layout, out: nn.Linear, index: int) -> Iterator[Trial]:
    name = f"the attention's output matrix of layer {index}"
    if out.weight.shape[0] == out.weight.shape[1]:
        yield Trial(f"with {name} transposed", "weights", (index,), replaced(out, out.weight.detach().T.contiguous()))
    if out.weight.shape[1] % 2 == 0:
        halves = replaced(out, out.weight.detach().roll(out.weight.shape[1] // 2, 1))
        yield Trial(f"with the halves of {name} exchanged", "weights", (index,), halves)
    heads = getattr(getattr(layout.model, "config", None), "num_attention_heads", None)
    if isinstance(heads, int) and heads > 1 and out.weight.shape[1] % heads == 0:
        width = out.weight.shape[1] // heads
        for places in (1, -1):
            moved = out.weight.detach().roll(places * width, 1)
            word = "on" if places > 0 else "back"
            yield Trial(f"with the heads of layer {index} one place {word}", "heads", (index,), replaced(out, moved))
