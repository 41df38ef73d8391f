"""One pass over the residual path: what every branch reads, puts out and adds, and where the gradient is.

`walk` keeps the tensors of a forward pass, `portrait` makes numbers of them. Definitions, the same everywhere:

    read          rms of h, the stream that a branch sees, before its own norm; the head's read is the last
    added         rms of v, what the branch contributes, after the norm on its output
    contribution  added / read
    turn          1 - mean cosine between h and the next h, over tokens
    gradient      norm of the loss gradient in a branch's (or a layer's) parameters
    share         a layer's gradient norm over the sum of all layers' norms (norms, not squares, are added)

Sums are taken in float64. A pass under a tape has the values and the gradients of any other pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from normlab.schemes.base import Kind, Scheme, Site


class Observed(Protocol):
    """What a pass over the residual path needs of a model: a `Transformer`, or a swapped model."""

    @property
    def scheme(self) -> Scheme: ...
    @property
    def sites(self) -> tuple[Site, ...]: ...
    @property
    def branches(self) -> nn.ModuleList: ...


@dataclass(frozen=True)
class Walk:
    """The tensors of one forward pass with M branches."""

    reads: tuple[Tensor, ...]
    """h at every read, and what the head reads before its norm: M + 1."""
    sources: tuple[Tensor, ...]
    """v: the embedding (where the scheme has it as a source), then what each branch contributes."""
    inputs: tuple[Tensor, ...]
    """What each branch took in, after its norm."""
    outputs: tuple[Tensor, ...]
    """What each branch put out, before the scheme had it."""
    summed: tuple[Tensor, ...]
    """What entered the norm behind each addition, in schemes that have one."""
    result: Tensor
    """What the pass returned: the loss, or features."""
    branches: int

    @property
    def complete(self) -> bool:
        """Whether every branch and the head told what they read; a scheme may have no such h."""
        return len(self.reads) == self.branches + 1

    @property
    def embedding(self) -> Tensor | None:
        return self.sources[0] if len(self.sources) == self.branches + 1 else None

    @property
    def added(self) -> tuple[Tensor, ...] | None:
        """What each branch contributes; None where a scheme moves the stream in another way (nGPT)."""
        return self.sources[-self.branches :] if len(self.sources) >= self.branches else None


@dataclass(frozen=True)
class BranchPortrait:
    """One branch in numbers; see the top of the file."""

    layer: int
    """From 1."""
    kind: Kind
    read: float | None
    added: float | None
    turn: float | None
    gradient: float | None

    @property
    def contribution(self) -> float | None:
        return self.added / self.read if self.added is not None and self.read else None


@dataclass(frozen=True)
class Portrait:
    """A model in numbers, branch by branch."""

    branches: tuple[BranchPortrait, ...]
    embedding: float | None
    head: float | None
    """rms of what the head reads, before the final norm."""
    loss: float | None

    @property
    def reads(self) -> list[float] | None:
        """M branches and the head."""
        found = [*(branch.read for branch in self.branches), self.head]
        return _all(found)

    @property
    def added(self) -> list[float] | None:
        return _all([branch.added for branch in self.branches])

    @property
    def contributions(self) -> list[float | None] | None:
        if self.reads is None or self.added is None:
            return None
        return [branch.contribution for branch in self.branches]

    @property
    def turns(self) -> list[float] | None:
        return _all([branch.turn for branch in self.branches])

    @property
    def layer_gradients(self) -> list[float] | None:
        """The gradient norm of each layer: of all its branches together."""
        squares: dict[int, float] = {}
        for branch in self.branches:
            if branch.gradient is None:
                return None
            squares[branch.layer] = squares.get(branch.layer, 0.0) + branch.gradient**2
        return [squares[layer] ** 0.5 for layer in sorted(squares)]

    @property
    def gradient_shares(self) -> list[float] | None:
        """Of each layer, in norms; None where there is no gradient at all (ReZero at its start)."""
        return shares(self.layer_gradients or [])


def shares(norms: list[float]) -> list[float] | None:
    """Each norm over their sum."""
    total = sum(norms)
    return [norm / total for norm in norms] if total > 0 else None


def walk(model: Observed, run: Callable[[], Tensor]) -> Walk:
    """`run()` is one forward pass of the model, with or without gradients, which is recorded and not changed."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    summed: list[Tensor] = []

    def keep(_: nn.Module, taken: tuple[object, ...], named: Mapping[str, object], out: object) -> None:
        inputs.append(_first((*taken, *named.values())))
        outputs.append(_first((out,)))

    def enters(_: nn.Module, taken: tuple[Tensor, ...]) -> None:
        summed.append(taken[0])

    hooks = [branch.register_forward_hook(keep, with_kwargs=True) for branch in model.branches]
    norms = [norm for norm in getattr(model.scheme, "out", ()) if not isinstance(norm, nn.Identity)]
    hooks += [norm.register_forward_pre_hook(enters) for norm in norms]
    try:
        with model.scheme.taped() as tape:
            result = run()
    finally:
        for hook in hooks:
            hook.remove()
    return Walk(
        tuple(tape.reads), tuple(tape.sources), tuple(inputs), tuple(outputs), tuple(summed), result, len(model.sites)
    )


def _first(values: Iterable[object]) -> Tensor:
    """What a branch was given, or gave: Hugging Face's take it by name, and return it with more."""
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, tuple):
            return _first(value)
    raise TypeError("a branch was given no tensor")


def portrait(model: Observed, run: Callable[[], Tensor], *, gradients: bool = True) -> tuple[Portrait, Walk]:
    """The numbers of one pass, and its tensors. With `gradients`, `run` returns the loss; else it may return anything.

    Parameters keep the gradients that they have.
    """
    with torch.set_grad_enabled(gradients):
        seen = walk(model, run)
        squares = _gradient_squares(model, seen.result) if gradients else None
    reads = [rms(h) for h in seen.reads] if seen.complete else None
    added = None if seen.added is None else [rms(v) for v in seen.added]
    turns = [turn(a, b) for a, b in pairwise(seen.reads)] if seen.complete else None
    branches = tuple(
        BranchPortrait(
            site.layer,
            site.kind,
            None if reads is None else reads[index],
            None if added is None else added[index],
            None if turns is None else turns[index],
            None if squares is None else squares[index] ** 0.5,
        )
        for index, site in enumerate(model.sites)
    )
    embedding = None if seen.embedding is None else rms(seen.embedding)
    loss = float(seen.result.detach()) if gradients else None
    return Portrait(branches, embedding, None if reads is None else reads[-1], loss), seen


def _gradient_squares(model: Observed, loss: Tensor) -> list[float]:
    """Squared gradient norm of each branch's parameters."""
    branches = model.branches
    owner = {id(p): index for index, branch in enumerate(branches) for p in branch.parameters()}
    parameters = [p for p in branches.parameters() if p.requires_grad]
    found = [0.0] * len(branches)
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        if gradient is not None:
            found[owner[id(parameter)]] += float(gradient.double().square().sum())
    return found


def rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def turn(before: Tensor, after: Tensor) -> float:
    """0 when the stream is only rescaled."""
    a, b = before.detach().double(), after.detach().double()
    return 1.0 - float(nn.functional.cosine_similarity(a, b, dim=-1, eps=1e-30).mean())


def _all(values: list[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None
