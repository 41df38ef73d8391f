"""Accidents that strike every layer alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from normlab.probes.measure.trials.changes import (
    KEYS,
    OUT,
    QUERIES,
    Trial,
    as_function,
    as_norm,
    asked,
    branches_of,
    counted,
    experts_of,
    find,
    gate_and_up,
    inside,
    ordered,
    replaced,
    scaled,
    swapped,
    together,
)
from normlab.probes.measure.weights.ends import input_embedding
from normlab.probes.measure.weights.gains import layer_norms
from normlab.probes.trace.hooks import Layout
from normlab.probes.trace.roles import module_path

FACTORS = (0.1, 0.4, 2.5, 10.0)


def whole_model(layout: Layout) -> Iterator[Trial]:
    """Accidents that strike every layer alike, so that no layer is unlike its neighbours."""
    table = input_embedding(layout.model)
    if table is not None:
        for factor in FACTORS:
            yield Trial(f"with the embedding times {factor:g}", "embeddings", (), scaled(table, factor))
    every = [layer for _, layer in layout.layers]
    gates = [swap for layer in every for swap in gate_and_up(layer)]
    if gates:
        yield Trial("with gate and up exchanged in every layer", "weights", (), swapped(gates))
    found = [(layer, query) for layer in every if (query := find(layer, QUERIES)) is not None]
    queries = [asked(layer, query) for layer, query in found]
    for factor in (0.25, 4.0) if len(queries) == len(every) else ():
        yield Trial(f"with all queries times {factor:g}", "attention", (), together(scaled(q, factor) for q in queries))
    branches = [
        (branch.kind, layer.get_submodule(module_path(branch.added)))
        for layer in every
        for branch in branches_of(layout, layer)
    ]
    for word, kinds in (
        ("all branches", ("attention", "ffn")),
        ("all attention", ("attention",)),
        ("all FFNs", ("ffn",)),
    ):
        chosen = [module for kind, module in branches if kind in kinds]
        for factor in (0.5, 2.0) if chosen else ():
            yield Trial(f"with {word} times {factor:g}", "branches", (), together(scaled(m, factor) for m in chosen))
    yield from converted(layout)


def converted(layout: Layout) -> Iterator[Trial]:
    """What libraries lay out in two ways: heads that share keys, rotary pairs, gains less one, activations."""
    every = [layer for _, layer in layout.layers]
    config = getattr(layout.model, "config", None)
    heads, shared = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    found = [(find(layer, QUERIES), find(layer, KEYS), find(layer, OUT)) for layer in every]
    whole = [(q, k, o) for q, k, o in found if q is not None and k is not None and o is not None]
    if isinstance(heads, int) and heads > 1 and len(whole) == len(every):
        if isinstance(shared, int) and 1 < shared < heads and heads % shared == 0:
            for groups, word in {heads // shared: "repeated", shared: "tiled"}.items():
                order = torch.arange(heads).reshape(-1, groups).T.flatten()
                moves = [move for q, _, o in whole for move in (ordered(q, order, 0), ordered(o, order, 1))]
                yield Trial(f"with the heads regrouped, as if keys had been {word}", "heads", (), together(iter(moves)))
        width = whole[0][0].weight.shape[0] // heads
        even = width % 2 == 0 and all(k.weight.shape[0] % width == 0 for _, k, _ in whole)
        pairs = torch.arange(width).reshape(-1, 2).T.flatten() if even else None
        if pairs is not None and any(name.endswith("inv_freq") for name, _ in layout.model.named_buffers()):
            for word, order in (("halves", pairs), ("neighbours", pairs.argsort())):
                turns = [inside(linear, order, width) for q, k, _ in whole for linear in (q, k)]
                yield Trial(f"with rotary pairs taken as {word}", "attention", (), together(iter(turns)))
    norms = [norm for _, _, norm in layer_norms(layout)]
    for word, step in (("added to", 1.0), ("taken from", -1.0)) if norms else ():
        moved = [replaced(norm, norm.get_parameter("weight").detach() + step) for norm in norms]
        yield Trial(f"with 1 {word} every gain", "weights", (), together(iter(moved)))
    if norms:
        centred = isinstance(norms[0], nn.LayerNorm)
        turned = [as_norm(norm, centred=not centred) for norm in norms]
        what = f"with norms that {'keep' if centred else 'take out'} the mean"
        yield Trial(what, "branches", (), together(iter(turned)))
    routers = [m for layer in every for m in layer.modules() if isinstance(getattr(m, "top_k", None), int)]
    for change in (1, -1) if routers else ():
        if 0 < routers[0].top_k + change <= experts_of(routers):  # type: ignore[operator]
            what = f"with {routers[0].top_k + change} experts a token"  # type: ignore[operator]
            yield Trial(what, "experts", (), together(counted(router, change) for router in routers))
    active = [module for layer in every for module in layer.modules() if type(module).__name__ in _ACTIVE]
    names = {type(module).__name__.lower() for module in active}
    others = {name: f for name, f in _ACTIVATIONS.items() if not any(name.lower() in own for own in names)}
    for name, function in others.items() if active else ():
        yield Trial(
            f"with {name} as the activation", "branches", (), together(as_function(m, function) for m in active)
        )


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "SiLU": functional.silu,
    "GELU": functional.gelu,
    "ReLU": torch.relu,
}


_ACTIVE = ("SiLU", "SiLUActivation", "GELU", "GELUActivation", "NewGELUActivation", "GELUTanh", "QuickGELUActivation", "ReLU",
           "PytorchGELUTanh", "FastGELUActivation", "Tanh", "Sigmoid", "ReLUSquaredActivation")  # fmt: skip
