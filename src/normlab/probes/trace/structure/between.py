"""What happens between layers: U-Net skips, a reinjected embedding, attention over depth. Named, where it is found.

In a plain stack the output of a layer is the input of the next. Where it is not, the layers' own identities say nothing
of the mixing, so the model's arithmetic outside of its layers is read here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from normlab.probes.trace.hooks import slow_path
from normlab.probes.trace.structure.ledger import Ledger, Node, ancestors, strip
from normlab.probes.trace.structure.path import Weight, linear
from normlab.probes.trace.tensors import maybe_tensor


@dataclass(frozen=True)
class Source:
    """One thing that a layer's input is made of: the output of layer `layer`, -1 for what entered the stack."""

    layer: int
    weight: str = ""  # "0.5 x", empty for 1

    def __str__(self) -> str:
        return self.weight + ("what entered the stack" if self.layer < 0 else f"layer {self.layer}'s output")


@dataclass(frozen=True)
class Gap:
    """The input of layer `layer` is not what the layer before returned, but made of these."""

    layer: int
    sources: tuple[Source, ...]
    summed: bool  # a weighted sum, or something else

    def __str__(self) -> str:
        text = " + ".join(map(str, self.sources)) if self.summed else ", ".join(map(str, self.sources))
        how = "is" if self.summed else "is computed from"
        return f"the input of layer {self.layer} {how} {text or 'nothing that the layers before it returned'}"


def explain_gaps(model: nn.Module, layers: list[nn.Module], run: Callable[[], object]) -> list[Gap]:
    """The inputs of layer calls that are not the output of the call before."""
    ledger = Ledger(model)
    labels: dict[Node, int] = {}
    outputs: list[Node] = []
    gaps: list[Gap] = []
    depth = 0

    def enter(_module: nn.Module, args: object, kwargs: object) -> None:
        nonlocal depth
        tensor = maybe_tensor((args, kwargs))
        depth += 1
        if depth > 1 or tensor is None:
            return
        node = ledger.node(tensor)
        if not outputs:
            labels[strip(node)] = -1
        elif strip(node) is not outputs[-1]:
            gaps.append(_gap(len(outputs), node, labels))
        ledger.active = False

    def leave(_module: nn.Module, _args: object, output: object) -> None:
        nonlocal depth
        tensor = maybe_tensor(output)
        depth -= 1
        if depth or tensor is None:
            return
        ledger.active = True
        made = ledger.nodes[id(tensor)] = Node("leaf", tensor, ledger.tick())
        labels[made] = len(outputs)
        outputs.append(made)

    handles = []
    for layer in {id(each): each for each in layers}.values():
        handles.append(layer.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
        handles.append(layer.register_forward_hook(leave))
    with torch.no_grad(), slow_path(handles), ledger:
        ledger.active = True
        run()
    return [gap for gap in gaps if not (gap.summed and gap.sources == (Source(gap.layer - 1),))]


def _gap(layer: int, node: Node, labels: dict[Node, int]) -> Gap:
    terms = _terms(Weight(), node, labels)
    if terms is not None:
        found = [Source(label, "" if weight.is_one else f"{weight.factor()} x ") for weight, label in terms]
        return Gap(layer, tuple(sorted(found, key=lambda each: -each.layer)), summed=True)
    used = {labels[each] for each in ancestors(node, set(labels)) if each in labels}
    return Gap(layer, tuple(Source(label) for label in sorted(used, reverse=True)), summed=False)


def _terms(weight: Weight, node: Node, labels: dict[Node, int]) -> list[tuple[Weight, int]] | None:
    node = strip(node)
    if node in labels:
        return [(weight, labels[node])]
    parts = linear(node)
    if parts is None:
        return None
    found: list[tuple[Weight, int]] = []
    for w, part in parts:
        inner = _terms(weight.times(w), part, labels)
        if inner is None:
            return None
        found += inner
    return found


def name_gaps(gaps: list[Gap], depth: int) -> str:
    """What the mixing between layers is commonly called."""
    earlier = [source.layer for gap in gaps for source in gap.sources if source.layer < gap.layer - 1]
    if not earlier:
        return "operations between layers"
    if set(earlier) == {-1}:
        return "reinjected embedding"
    if all(gap.summed for gap in gaps):
        pairs = [
            (gap.layer, source.layer) for gap in gaps for source in gap.sources if 0 <= source.layer < gap.layer - 1
        ]
        mirrored = all(abs(layer + source - (depth - 1)) <= 1 for layer, source in pairs)
        return "U-Net skips" if mirrored and pairs else "skips between layers"
    return "mixing over depth"
