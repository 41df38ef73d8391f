"""Undo an accident on trial: exchange, turn, scale, and see whether the loss falls. A healthy model never gains by it.

A trial changes the model for the time of a few passes and is taken back exactly. Most are given up after one batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.table import Real
from normlab.probes.measure.weights.ends import input_embedding
from normlab.probes.measure.weights.gains import gain_of, layer_norms
from normlab.probes.trace.hooks import Layout, output_projection, slow_path
from normlab.stats import standard_error

FACTORS = (0.1, 0.4, 2.5, 10.0)
ODD = 2.0  # times the median gain of the layers around, from which on it is tried what they would do


@dataclass(frozen=True)
class TrialRow:
    """The loss with one thing changed, over several batches; `error` is the standard error of `change`."""

    what: str
    subject: str
    layers: tuple[int, ...]
    loss: Real
    change: Real
    error: Real
    batches: int


@dataclass(frozen=True)
class Trial:
    """`changed()` is a context in which the model is another."""

    what: str  # completes "the loss falls ... "
    subject: str
    layers: tuple[int, ...]
    changed: Callable[[], AbstractContextManager[None]]


@torch.no_grad()
def run_trials(
    layout: Layout,
    first: object,
    batches: Sequence[object],
    loss: Loss,
    *,
    suspects: Sequence[int] = (),
    least: float = 0.004,
) -> tuple[TrialRow, ...]:
    """Rows of the trials that lower the loss of the `first` batch by `least` nats, measured on `batches`."""

    def measured(batch: object) -> float:
        with slow_path():
            return float(loss(layout.model, batch))

    start, before = measured(first), [measured(batch) for batch in batches]
    rows = []
    for trial in (*whole_model(layout), *odd_gains(layout), *single_layers(layout, suspects)):
        with trial.changed():
            if not measured(first) < start - least:
                continue
            after = [measured(batch) for batch in batches]
        changes = [new - old for new, old in zip(after, before, strict=True)]
        error = standard_error(changes) if len(changes) > 1 else 0.0
        mean = statistics.fmean(changes)
        rows.append(
            TrialRow(trial.what, trial.subject, trial.layers, statistics.fmean(before), mean, error, len(changes))
        )
    return tuple(sorted(rows, key=lambda row: row.change))


def whole_model(layout: Layout) -> Iterator[Trial]:
    """Accidents that strike every layer alike, so that no layer is unlike its neighbours."""
    table = input_embedding(layout.model)
    if table is not None:
        for factor in FACTORS:
            yield Trial(f"with the embedding times {factor:g}", "embeddings", (), _scaled(table, factor))
    every = [layer for _, layer in layout.layers]
    gates = [swap for layer in every for swap in _gate_and_up(layer)]
    if gates:
        yield Trial("with gate and up exchanged in every layer", "weights", (), _swapped(gates))
    found = [(layer, query) for layer in every if (query := _find(layer, _QUERIES)) is not None]
    queries = [_asked(layer, query) for layer, query in found]
    for factor in (0.25, 4.0) if len(queries) == len(every) else ():
        yield Trial(f"with all queries times {factor:g}", "attention", (), _all(_scaled(q, factor) for q in queries))


def single_layers(layout: Layout, suspects: Sequence[int]) -> Iterator[Trial]:
    """What a wrong conversion does to one layer: matrices exchanged, transposed, with displaced heads, of wrong sign."""
    depth = len(layout.layers)
    for index, (_, layer) in enumerate(layout.layers):
        if index not in suspects:
            continue
        here = (index,)
        query, key, value = (_find(layer, names) for names in (_QUERIES, _KEYS, _VALUES))
        if query is not None and key is not None and query.weight.shape == key.weight.shape:
            yield Trial(f"with query and key of layer {index} exchanged", "attention", here, _swapped([(query, key)]))
        for word, matrix in (("query", query), ("key", key), ("value", value)):
            if matrix is not None and matrix.weight.shape[0] == matrix.weight.shape[1]:
                turned = _replaced(matrix, matrix.weight.detach().T.contiguous())
                yield Trial(f"with the {word} matrix of layer {index} transposed", "weights", here, turned)
        if query is not None:
            for factor in (0.25, 4.0):
                what = f"with the queries of layer {index} times {factor:g}"
                yield Trial(what, "attention", here, _scaled(_asked(layer, query), factor))
        if key is not None and value is not None and key.weight.shape == value.weight.shape:
            yield Trial(f"with key and value of layer {index} exchanged", "attention", here, _swapped([(key, value)]))
        if (gates := _gate_and_up(layer)) and depth > 1:
            yield Trial(f"with gate and up of layer {index} exchanged", "weights", here, _swapped(gates))
        for other in (index + 1, index + 2):
            if other < depth and _same(layer, layout.layers[other][1]):
                pair: list[SwappedPair] = [(layer, layout.layers[other][1])]
                yield Trial(f"with layers {index} and {other} exchanged", "weights", (index, other), _swapped(pair))
        for branch in layout.roles[id(layer)].branches if id(layer) in layout.roles else ():
            added = layer.get_submodule(branch.added)
            word = {"ffn": "FFN"}.get(branch.kind, branch.kind)
            yield Trial(f"with the {word} of layer {index} turned round", "branches", here, _scaled(added, -1.0))
            yield Trial(f"without the {word} of layer {index}", "branches", here, _scaled(added, 0.0))
            for factor in (0.2, 5.0):
                what = f"with the {word} of layer {index} times {factor:g}"
                yield Trial(what, "branches", here, _scaled(added, factor))
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
                yield Trial(what, "weights", (index,), _replaced(norm, middle))


def _projections(layout: Layout, out: nn.Linear, index: int) -> Iterator[Trial]:
    name = f"the attention's output matrix of layer {index}"
    if out.weight.shape[0] == out.weight.shape[1]:
        yield Trial(f"with {name} transposed", "weights", (index,), _replaced(out, out.weight.detach().T.contiguous()))
    heads = getattr(getattr(layout.model, "config", None), "num_attention_heads", None)
    if isinstance(heads, int) and heads > 1 and out.weight.shape[1] % heads == 0:
        width = out.weight.shape[1] // heads
        for places in (1, -1):
            moved = out.weight.detach().roll(places * width, 1)
            word = "on" if places > 0 else "back"
            yield Trial(f"with the heads of layer {index} one place {word}", "heads", (index,), _replaced(out, moved))


_QUERIES = ("q_proj", "query", "q_lin", "wq")
_KEYS = ("k_proj", "key", "k_lin", "wk")
_VALUES = ("v_proj", "value", "v_lin", "wv")


def _find(layer: nn.Module, names: Sequence[str]) -> nn.Linear | None:
    """The only matrix of that name: a layer with two (cross-attention) is left alone."""
    found = [m for n, m in layer.named_modules() if n.rsplit(".", 1)[-1] in names and isinstance(m, nn.Linear)]
    return found[0] if len(found) == 1 else None


def _asked(layer: nn.Module, query: nn.Linear) -> nn.Module:
    """What returns the queries as they are compared: a norm of the queries where there is one."""
    norms = [m for n, m in layer.named_modules() if n.rsplit(".", 1)[-1] in ("q_norm", "query_norm", "q_layernorm")]
    return norms[0] if norms else query


def _same(one: nn.Module, other: nn.Module) -> bool:
    shapes = [[(name, p.shape) for name, p in layer.named_parameters()] for layer in (one, other)]
    return one is not other and shapes[0] == shapes[1]


SwappedPair = tuple[nn.Module | Tensor, nn.Module | Tensor]


def _gate_and_up(layer: nn.Module) -> list[SwappedPair]:
    pairs: list[SwappedPair] = []
    for module in layer.modules():
        gate, up = getattr(module, "gate_proj", None), getattr(module, "up_proj", None)
        if isinstance(gate, nn.Linear) and isinstance(up, nn.Linear) and gate.weight.shape == up.weight.shape:
            pairs.append((gate, up))
        fused = getattr(module, "gate_up_proj", None)
        weight = fused.weight if isinstance(fused, nn.Linear) else fused
        if isinstance(weight, Tensor) and weight.dim() in (2, 3) and weight.shape[-2] % 2 == 0:
            halves = weight.detach().chunk(2, -2)
            pairs.append((halves[0], halves[1]))
    return pairs


def _scaled(module: nn.Module, factor: float) -> Callable[[], AbstractContextManager[None]]:
    """What the module returns, times a factor."""

    def scale(_module: nn.Module, _args: object, output: object) -> object:
        if isinstance(output, Tensor):
            return output * factor
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            return (output[0] * factor, *output[1:])
        return output

    @contextmanager
    def changed() -> Iterator[None]:
        handle = module.register_forward_hook(scale)
        try:
            yield
        finally:
            handle.remove()

    return changed


def _all(changes: Iterator[Callable[[], AbstractContextManager[None]]]) -> Callable[[], AbstractContextManager[None]]:
    known = list(changes)

    @contextmanager
    def changed() -> Iterator[None]:
        with ExitStack() as stack:
            for change in known:
                stack.enter_context(change())
            yield

    return changed


def _swapped(pairs: Sequence[SwappedPair]) -> Callable[[], AbstractContextManager[None]]:
    def exchange() -> None:
        for first, second in pairs:
            for one, other in zip(_tensors(first), _tensors(second), strict=True):
                kept = one.clone()
                one.copy_(other)
                other.copy_(kept)

    @contextmanager
    def changed() -> Iterator[None]:
        exchange()
        try:
            yield
        finally:
            exchange()

    return changed


def _tensors(item: nn.Module | Tensor) -> list[Tensor]:
    return [item] if isinstance(item, Tensor) else [parameter.data for parameter in item.parameters()]


def _replaced(module: nn.Module, weight: Tensor) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def changed() -> Iterator[None]:
        own = module.get_parameter("weight").data
        kept = own.clone()
        own.copy_(weight)
        try:
            yield
        finally:
            own.copy_(kept)

    return changed
