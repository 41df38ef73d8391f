"""What may have been exchanged: parts of two layers, the final norm and the last one, tokens, channels, experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from normlab.probes.inputs.losses import Loss, call, logits_of, token_ids
from normlab.probes.measure.trials.changes import (
    KEYS,
    OUT,
    QUERIES,
    VALUES,
    SwappedPair,
    Trial,
    find,
    inside,
    replaced,
    same_shapes,
    swapped,
)
from normlab.probes.measure.weights.ends import input_embedding, output_embedding
from normlab.probes.measure.weights.gains import final_norms, layer_norms
from normlab.probes.trace.hooks import Layout, slow_path
from normlab.probes.trace.roles import module_path

TOKENS = 3  # pairs of each table that are tried
MANY = 256  # tokens among which they are looked for
FEW = 8  # experts: up to here a router is tried


def exchanged(layout: Layout, pairs: Sequence[tuple[int, int]]) -> Iterator[Trial]:
    """The same part of two layers: a branch, one of the matrices of attention, or all norms."""
    for one, other in pairs:
        first, second = layout.layers[one][1], layout.layers[other][1]
        if not same_shapes(first, second):
            continue
        for word, names, subject in _parts(layout, first):
            pair: list[SwappedPair] = [(first.get_submodule(name), second.get_submodule(name)) for name in names]
            yield Trial(f"with {word} of the layers {one} and {other} exchanged", subject, (one, other), swapped(pair))


def _parts(layout: Layout, layer: nn.Module) -> Iterator[tuple[str, list[str], str]]:
    """(words, the modules, subject)"""
    roles = layout.roles.get(id(layer))
    for branch in roles.branches if roles else ():
        name = module_path(branch.core or branch.added)
        if name:
            attends = branch.kind == "attention"
            yield f"the {'attention' if attends else 'FFN'}", [name], "attention" if attends else "weights"
    for word, known in (("queries", QUERIES), ("keys", KEYS), ("values", VALUES), ("attention outputs", OUT)):
        found = [n for n, m in layer.named_modules() if n.rpartition(".")[2] in known and isinstance(m, nn.Linear)]
        if len(found) == 1:
            yield f"the {word}", found, "attention"
    norms = [name for index, name, norm in layer_norms(layout) if layout.layers[index][1] is layer]
    own = [name for name in norms if name in dict(layer.named_modules())]
    if own:
        yield "the norms", own, "weights"


def last_norms(layout: Layout) -> Iterator[Trial]:
    """The final norm and those of the last layer, which files name much alike."""
    last = len(layout.layers) - 1
    for name, final in final_norms(layout):
        for index, inner, norm in layer_norms(layout):
            shapes = [[p.shape for p in each.parameters()] for each in (final, norm)]
            if index == last and shapes[0] == shapes[1] and type(final) is type(norm):
                pair: list[SwappedPair] = [(final, norm)]
                yield Trial(
                    f"with the final norm ({name}) and {inner} of layer {last} exchanged",
                    "final_norm",
                    (),
                    swapped(pair),
                )


def tokens(layout: Layout, batch: object, batches: Sequence[object], loss: Loss) -> Iterator[Trial]:
    """Two tokens whose followers in the text are those that the model expects behind the other; two rows of the head."""
    table, head = input_embedding(layout.model), output_embedding(layout.model)
    found: list[tuple[str, Tensor, list[tuple[int, int]]]] = []
    if table is not None and loss.name == "causal":
        found.append(("embeddings", table.weight, _followers(layout, batches)))
    if head is not None and (gradient := _gradient(layout, batch, loss, head)) is not None:
        used = gradient.norm(dim=1).topk(min(MANY, len(gradient))).indices
        rows, pulls = head.detach()[used].float(), -gradient[used].float()
        found.append(("rows of the head", head, _best(used, pulls @ rows.T)))
    for word, weight, pairs in found:
        for one, other in pairs:
            pair: list[SwappedPair] = [(weight.data[one], weight.data[other])]
            yield Trial(f"with the {word} of tokens {one} and {other} exchanged", "embeddings", (), swapped(pair))


def _followers(layout: Layout, batches: Sequence[object]) -> list[tuple[int, int]]:
    """Each token alone is read by the model; whose followers in the text are likelier behind another token?"""
    texts = [ids for ids in map(token_ids, batches) if ids is not None]
    if not texts:
        return []
    before, behind = (torch.cat([cut.flatten() for cut in cuts]) for cuts in zip(*map(_steps, texts), strict=True))
    counts = before.bincount()
    used = counts.topk(min(MANY, int((counts > 0).sum()))).indices
    with slow_path():
        said = logits_of(call(layout.model, used[:, None]))
    if said.dim() != 3:
        return []
    logs = said[:, -1].float().log_softmax(-1)
    table = torch.zeros(len(used), logs.shape[1], device=logs.device)
    for place, token in enumerate(used.tolist()):
        table[place] = behind[before == token].bincount(minlength=logs.shape[1]).to(table)
    return _best(used, table @ logs.T)


def _steps(ids: Tensor) -> tuple[Tensor, Tensor]:
    return ids[:, :-1], ids[:, 1:]


def _best(used: Tensor, score: Tensor) -> list[tuple[int, int]]:
    """The pairs that gain most if i became j and j became i, where `score[i, j]` is what i scores as j."""
    own = score.diagonal()
    both = (score + score.T - own[:, None] - own[None]).triu(1)
    best = both.flatten().topk(min(TOKENS, both.numel()))
    places = [divmod(place, len(used)) for place in best.indices.tolist()]
    return [(int(used[i]), int(used[j])) for (i, j), gain in zip(places, best.values.tolist(), strict=True) if gain > 0]


def _gradient(layout: Layout, batch: object, loss: Loss, weight: Tensor) -> Tensor | None:
    """None where there is none: quantised weights, or a table that the loss does not reach."""
    was = weight.requires_grad
    try:
        with torch.enable_grad(), slow_path():
            weight.requires_grad_(True)
            (found,) = torch.autograd.grad(loss(layout.model, batch), [weight])
    except RuntimeError:
        return None
    finally:
        weight.requires_grad_(was)
    return found if bool(torch.isfinite(found).all()) else None


def channels(layout: Layout, suspects: Sequence[int]) -> Iterator[Trial]:
    """Values whose channels are in the wrong order inside of each head."""
    count = getattr(getattr(layout.model, "config", None), "num_attention_heads", None)
    if not isinstance(count, int) or count < 2:
        return
    for index in suspects:
        value = find(layout.layers[index][1], VALUES)
        out = find(layout.layers[index][1], OUT)
        width = 0 if value is None else (value.weight if out is None else out.weight.T).shape[0] // count
        if value is not None and width > 1 and len(value.weight) % width == 0:
            turned = inside(value, torch.arange(width).flip(0), width)
            yield Trial(f"with the value channels of layer {index} reversed", "attention", (index,), turned)


def routed(layout: Layout, suspects: Sequence[int]) -> Iterator[Trial]:
    """A router whose rows belong to other experts."""
    for index in suspects:
        named = dict(layout.layers[index][1].named_modules())
        routers = [m for n, m in named.items() if n.rpartition(".")[2] in ("gate", "router", "wg", "classifier")]
        for router in routers:
            weight = getattr(router, "weight", None)
            if not isinstance(weight, Tensor) or weight.dim() != 2 or not 2 < len(weight) <= FEW:
                continue
            for step, word in ((1, "on"), (-1, "back")):
                what = f"with the router of layer {index} one expert {word}"
                yield Trial(what, "experts", (index,), replaced(router, weight.detach().roll(step, 0)))
