"""What does an unknown layer add to the stream? Watch one forward pass, and read it from the layer's arithmetic.

Names do not matter: `structure.path` walks from what the layer returns back to what it was given, and every addition
on the way is a branch. The identity check then runs on the values of every layer, as for a known row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from normlab.probes.trace.hooks import slow_path
from normlab.probes.trace.roles import BranchRoles, Factor, LayerRoles
from normlab.probes.trace.structure.kinds import FUSED, SOFTMAX, classify
from normlab.probes.trace.structure.ledger import LayerTrace, Ledger, ModuleCall, Node, ancestors, recording, strip
from normlab.probes.trace.structure.path import (
    NormOnPath,
    NotAStream,
    Parts,
    PathBack,
    Step,
    Weighed,
    Weight,
    Write,
    constant,
)

Found = LayerRoles | str  # a row, or why there is none


def infer_roles(model: nn.Module, layers: Iterable[nn.Module], run: Callable[[], object]) -> dict[int, Found]:
    """For each layer (by id) the row that its arithmetic is, or why it is none; a layer that is not called is left out."""
    found: dict[int, Found] = {}
    ledger = Ledger(model)
    handles = []
    for layer in layers:

        def finished(trace: LayerTrace, layer: nn.Module = layer) -> None:
            found[id(layer)] = explain(type(layer).__name__, trace)

        handles += recording(ledger, layer, finished)
    with torch.no_grad(), slow_path(handles), ledger:
        run()
    return found


def usual_rows(layers: Sequence[nn.Module], found: Mapping[int, Found]) -> dict[int, Found]:
    """The row that most layers of a class have, also for the few that cannot be read or weigh their parts otherwise.

    The identity is then checked against it, so that a layer that is unlike its own kind is named and not believed.
    """
    rows = dict(found)
    for kind in {type(layer) for layer in layers}:
        mine = [layer for layer in layers if type(layer) is kind and id(layer) in found]
        known = [(layer, row) for layer in mine if isinstance(row := found[id(layer)], LayerRoles)]
        shapes = Counter(_unweighed(row) for _, row in known)
        for layer in mine:
            row = found[id(layer)]
            alike = [other for other, each in known if isinstance(row, str) or _unweighed(each) == _unweighed(row)]
            weights = Counter(_weights(found[id(other)]) for other in alike)
            usual, count = weights.most_common(1)[0] if weights else ((), 0)
            gated = any(isinstance(each, Factor) for each in usual)  # a gate belongs to its own layer
            if gated or 3 * count < 2 * len(mine) or (isinstance(row, LayerRoles) and _weights(row) == usual):
                continue
            if len(shapes) == 1:  # layers with other modules (a dense one among experts) have rows of their own
                rows[id(layer)] = next(found[id(other)] for other in alike if _weights(found[id(other)]) == usual)
    return rows


def _unweighed(row: LayerRoles) -> tuple[BranchRoles, ...]:
    return tuple(replace(branch, skip=1.0, scale=1.0) for branch in row.branches)


def _weights(row: Found) -> tuple[object, ...]:
    return (
        () if isinstance(row, str) else tuple(each for branch in row.branches for each in (branch.skip, branch.scale))
    )


def explain(name: str, trace: LayerTrace) -> Found:
    """The row of one traced call, or why there is none."""
    try:
        walk = PathBack(trace.start, trace.calls)
        branches = _Fold(walk, trace).branches(trace.end)
    except NotAStream as reason:
        return str(reason)
    if not branches:
        return "is what it was given: it adds nothing"
    return LayerRoles(name, tuple(_numbered(branches)), inferred=True)


def _numbered(branches: list[BranchRoles]) -> list[BranchRoles]:
    """A second branch of a kind in one layer gets a name of its own, so that the two are not averaged."""
    counts: dict[str, int] = {}
    named = []
    for branch in branches:
        counts[branch.kind] = count = counts.get(branch.kind, 0) + 1
        named.append(replace(branch, kind=f"{branch.kind}_{count}") if count > 1 else branch)
    return named


class _Fold:
    """From steps on the way of the stream to branches."""

    def __init__(self, walk: PathBack, trace: LayerTrace) -> None:
        self.walk, self.trace = walk, trace
        self.places: list[Node] = [walk.start]  # the stream, wherever a branch may read it
        self.fresh: list[Node] = [walk.start]  # of these, since the last write
        self.found: list[BranchRoles] = []
        self.behind: dict[Node, int] = {walk.start: 0}  # how many branches have written at a place
        self.carry = ""
        self.skip = Weight()

    def branches(self, end: Node) -> list[BranchRoles]:
        last: tuple[int, Weight, list[Weight], Parts] | None = None
        steps = self.walk.steps(end)
        for number, step in enumerate(steps):
            if isinstance(step, Write):
                self._flush(last)
                last = self._write(step)
            elif isinstance(step, Weighed):
                if last is not None and _reads_before(step, steps[number + 1 :]):
                    self._flush(last)  # only what skips the next branch is weighed
                    last = None
                if last is None:
                    self.skip = self.skip.times(step.weight)
                else:  # c (x + y) = c x + c y
                    count, skip, scales, shifts = last
                    shifted = [(weight.times(step.weight), node) for weight, node in shifts]
                    last = count, skip.times(step.weight), [s.times(step.weight) for s in scales], shifted
            else:
                self._norm(step, last)
                last = None
            self.places.append(step.after)
            self.behind[step.after] = len(self.found)
            self.fresh = [step.after] if isinstance(step, Write) else [*self.fresh, step.after]
        self._flush(last)
        if self.carry and self.found:
            self.found[-1], self.carry = replace(self.found[-1], out=self.carry), ""
        if not self.skip.is_one or self.carry:
            raise NotAStream("is scaled or normed behind its last branch in a way that has no name here")
        return self.found

    def _norm(self, step: NormOnPath, last: tuple[int, Weight, list[Weight], Parts] | None) -> None:
        self._flush(last)
        carries = self.found and self.found[0].carry  # MiniMax: every branch is added to the normed stream
        if self.found and not carries and not self.found[-1].out and self.skip.is_one:
            self.found[-1] = replace(self.found[-1], out=step.call.name)
        else:
            self.carry = step.call.name

    def _write(self, step: Write) -> tuple[int, Weight, list[Weight], Parts] | None:
        terms = [each for weight, node in step.terms for each in self.walk.terms(weight, node)]
        constants = [each for each in terms if not each[1].data]
        added = sorted((each for each in terms if each[1].data), key=lambda each: self.walk.returned[each[1]].end)
        if not added:
            raise NotAStream("adds a learned constant alone to the stream")
        beside = [(weight, self._branch(node, strip(step.before))) for weight, node in added]
        beside.sort(key=lambda each: each[1].kind == "ffn")
        self.found += [
            replace(branch, parallel=True) if number else branch for number, (_, branch) in enumerate(beside)
        ]
        return len(added), self.skip.times(step.skip), [weight for weight, _ in beside], constants

    def _flush(self, last: tuple[int, Weight, list[Weight], Parts] | None) -> None:
        """Give the branches of the last write their weights, which are known when the next step is."""
        if last is None:
            return
        count, skip, scales, shifts = last
        for offset, weight in enumerate(scales):
            place = len(self.found) - count + offset
            first = offset == 0
            self.found[place] = replace(
                self.found[place],
                scale=weight.factor(),
                skip=skip.factor() if first else 1.0,
                carry=self.carry if first else "",
                shift=constant(shifts) if first else None,
            )
        self.carry, self.skip = "", Weight()

    def _branch(self, node: Node, before: Node) -> BranchRoles:
        walk = self.walk
        call = walk.returned[strip(node)]
        stop = set(self.places)
        cone = list(ancestors(node, stop))
        inside = set(cone)
        read = [place for place in self.places if place in inside]
        late = read[-1] if read else before
        calls = [each for each in walk.calls if each.wrote and (each.wrote in inside or strip(each.wrote) in inside)]
        calls = [each for each in calls if each.end <= call.end]
        core = self._core(call, calls)
        within = [each for each in calls if core and (each is core or each.name.startswith(core.name + "."))]
        kind, mixer = classify(cone, within or calls, core, self.trace.foreign)
        normed = walk.norms.get(late)  # of a carried norm, the branch reads the norm's own output
        pre = normed.name if normed is not None and normed.name == self.carry else ""
        if not pre:
            found = [c for c in calls if c.is_norm and c.read and strip(c.read) is late and c is not call]
            pre = found[0].name if found else ""
        if kind == "attention" or kind == "cross_attention":
            core = _attending(cone, walk.calls) or core
        parallel = late not in self.fresh and late is not before and bool(self.found)
        return BranchRoles(
            kind,
            call.name,
            core.name if core is not None and core is not call else "",
            pre=pre,
            res=call.name if call.is_norm else "",
            parallel=parallel,
            behind=self.behind.get(late, 0) if parallel else 0,
            mixer=mixer,
        )

    def _core(self, call: ModuleCall, calls: list[ModuleCall]) -> ModuleCall | None:
        """The module behind a norm or a dropout on the branch."""
        here: ModuleCall | None = call
        for _ in range(6):
            if here is None or not _is_trivial(here) or here.read is None:
                return here
            behind = strip(here.read)
            found = [each for each in calls if each.wrote and strip(each.wrote) is behind and each.end < here.start]
            if not found:
                return here
            here = found[-1]
        return here


def _reads_before(step: Weighed, later: Sequence[Step]) -> bool:
    """Does the next branch read the stream as it was before it was weighed?"""
    write = next((each for each in later if isinstance(each, Write)), None)
    stop = {step.before, step.after}
    return write is not None and any(step.before in set(ancestors(node, stop)) for _, node in write.terms)


def _is_trivial(call: ModuleCall) -> bool:
    return call.is_norm or type(call.module).__name__ in ("Dropout", "Identity", "StochasticDepth", "DropPath")


def _attending(cone: list[Node], calls: list[ModuleCall]) -> ModuleCall | None:
    """The innermost module with parts in which the softmax runs: BERT's `attention.self`."""
    found = [node for node in cone if node.op in SOFTMAX or FUSED in node.op]
    over_keys = [node for node in found if node.op not in SOFTMAX or node.value.dim() >= 4]  # a router has one as well
    times = [node.time for node in over_keys or found]
    around = [
        c for c in calls if any(c.start < time < c.end for time in times) and any(True for _ in c.module.children())
    ]
    return min(around, key=lambda call: call.end - call.start, default=None)
