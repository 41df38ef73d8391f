"""How far our schemes are from transformers' decoders with the same weights: outputs, gradients, and in bfloat16.

`python -m tests.conformance.differences` writes the table of docs/frontier.md.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normlab.schemes.sinkhorn import sinkhorn
from normlab.testing.shipped import Shipped, embedded, recognise, simple_branches
from tests.conformance.decoders import DECODERS, DEPTH, DIM, run_ours, run_theirs, shipped, without_casts

DOCUMENT = Path(__file__).parents[2] / "docs" / "frontier.md"
WEIGHTS = torch.randn(2 * DEPTH, DIM, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * DIM**-0.5


def simple(index: int, z: Tensor) -> Tensor:
    """A branch of our choice, where the residual path alone is compared."""
    return torch.tanh(z @ WEIGHTS[index].to(z.dtype))


@dataclass(frozen=True)
class Difference:
    """Largest absolute differences; outputs are of order 1, gradients relative."""

    outputs: float
    gradients: float
    size: float  # standard deviation of the outputs


def _gap(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.detach().double() - theirs.detach().double()).abs().max())


def _relative(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Largest difference of gradients, each divided by its parameter's largest, or a hundredth of the largest of all."""
    largest = max(float(theirs.abs().max()) for _, theirs in pairs)
    return max(_gap(ours, theirs) / max(float(theirs.abs().max()), largest / 100) for ours, theirs in pairs)


def _backward(output: Tensor) -> None:
    draw = torch.Generator().manual_seed(7)
    (output.double() * torch.randn(output.shape, generator=draw, dtype=torch.float64)).sum().backward()


def whole(name: str, seed: int = 0) -> Difference:
    """Every layer of theirs with their own branches, against ours with their branches reused; the head included."""
    theirs, x, tokens = shipped(name, seed)
    ours = theirs.build()
    seen = run_theirs(theirs, x.requires_grad_(), tokens)
    _backward(seen.output)
    wanted = {n: p.grad.clone() for n, p in theirs.decoder.named_parameters() if p.grad is not None}
    at_input, x = x.grad, x.detach().clone().requires_grad_()
    linked = [(link, link.layout(link.theirs.grad)) for link in theirs.links(ours) if link.theirs.grad is not None]
    theirs.decoder.zero_grad()
    found = run_ours(ours, x, seen.replay)
    _backward(found)
    names = {id(p): n for n, p in theirs.decoder.named_parameters()}
    shared = [p for branch in theirs.branches for p in branch.parameters() if p.grad is not None]
    pairs = [(x.grad, at_input), *((p.grad, wanted[names[id(p)]]) for p in shared)]
    pairs += [(_ours(link), gradient) for link, gradient in linked]
    return Difference(_gap(found, seen.output), _relative(pairs), float(seen.output.detach().std()))


def sensitivity(name: str, seed: int = 0) -> float:
    """How far their own gradients move when their input is moved by one rounding of float32."""
    found = []
    for scale in (1.0, 1 + 2.0**-23):
        theirs, x, tokens = shipped(name, seed)
        _backward(run_theirs(theirs, x * scale, tokens).output)
        found.append({n: p.grad for n, p in theirs.decoder.named_parameters() if p.grad is not None})
    return _relative([(found[1][n], gradient) for n, gradient in found[0].items()])


def _ours(link: Any) -> Tensor:
    gradient = link.ours.grad
    return gradient if link.index is None else gradient[link.index]


def path(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Difference:
    """The residual path alone: the same simple branches in both."""
    theirs, x, tokens = shipped(name, seed, dtype)
    ours = theirs.build()
    x = x.requires_grad_()
    output = run_path(theirs, x, tokens, keep=dtype == torch.float64)
    _backward(output)
    linked = [(link, link.layout(link.theirs.grad).clone()) for link in theirs.links(ours)]
    at_input, x = x.grad, x.detach().clone().requires_grad_()
    found = run_ours(ours, x, simple)
    _backward(found)
    pairs = [(x.grad, at_input), *((_ours(link), gradient) for link, gradient in linked)]
    return Difference(_gap(found, output), _relative(pairs), float(output.detach().std()))


def rounding(name: str, seed: int = 0) -> tuple[float, float]:
    """How far their gradients in float32, and ours, are from the same in float64: the residual path alone, relative.

    A gradient that is a sum which nearly cancels (the head's alpha) differs between any two orders of summation, and so
    between processors. What can be asked is that ours is as near to the truth as theirs.
    """
    theirs, x, tokens = shipped(name, seed)
    exact = recognise(copy.deepcopy(theirs.decoder).double())
    gradients = {}
    for key, model, keep in (("exact", exact, True), ("theirs", theirs, False)):
        given = x.to(torch.float64 if keep else x.dtype).requires_grad_()
        _backward(run_path(model, given, tokens, keep=keep))
        links = model.links(model.build())
        gradients[key] = [given.grad, *(link.layout(link.theirs.grad).clone() for link in links)]
    ours, given = theirs.build(), x.detach().clone().requires_grad_()
    _backward(run_ours(ours, given, simple))
    gradients["ours"] = [given.grad, *(_ours(link) for link in theirs.links(ours))]
    found = [_relative(list(zip(gradients[key], gradients["exact"], strict=True))) for key in ("theirs", "ours")]
    return found[0], found[1]


def run_path(theirs: Shipped, x: Tensor, tokens: Tensor, *, keep: bool = False) -> Tensor:
    """`keep` takes out their casts to float32."""
    with simple_branches(theirs, x, simple, tokens), without_casts(x.dtype) if keep else nullcontext():
        return embedded(theirs.decoder, x, tokens)


def laurel_step(seed: int = 0, dtype: torch.dtype = torch.float32) -> Difference:
    """Gemma-3n: from what AltUp predicts for the active stream to what it corrects with, layer by layer."""
    theirs, x, tokens = shipped("gemma3n", seed, dtype)
    ours, layers = theirs.build(), list(theirs.decoder.layers)
    given: list[Tensor] = []
    given_back: list[Tensor] = []
    for layer in layers:
        predict, correct = layer.altup.predict, layer.altup.correct

        def predicted(hidden: Tensor, predict: Any = predict) -> Tensor:
            found = predict(hidden)
            found = found.detach().requires_grad_()
            given.append(found)
            return found

        def corrected(predictions: Tensor, activated: Tensor, correct: Any = correct) -> Tensor:
            given_back.append(activated)
            return correct(predictions, activated)

        layer.altup.predict, layer.altup.correct = predicted, corrected
    seen = run_theirs(theirs, x, tokens)
    gaps, gradients = [], []
    for i, (start, wanted) in enumerate(zip(given, given_back, strict=True)):
        active = start[theirs.decoder.config.altup_active_idx]
        (there,) = torch.autograd.grad(wanted.square().sum(), start)
        stream = active.detach().requires_grad_()
        h = stream
        for site in theirs.frame.sites[2 * i : 2 * i + 2]:
            z, carry = ours.read(h, site)
            h = ours.write(h, seen.replay(site.index, z), carry, site)
        (here,) = torch.autograd.grad(h.square().sum(), stream)
        gaps.append(_gap(h, wanted))
        gradients.append(_relative([(here, there[theirs.decoder.config.altup_active_idx])]))
    return Difference(max(gaps), max(gradients), float(given_back[-1].detach().std()))


@dataclass(frozen=True)
class Rounded:
    """Relative errors (root mean square) of the residual path in bfloat16 against float64, with the same weights."""

    shipped: float
    ours: float
    no_float32: float  # their code with its casts to float32 taken out


def bfloat16(name: str, seed: int = 0) -> Rounded:
    theirs, x, tokens = shipped(name, seed)
    with torch.no_grad():
        for parameter in theirs.decoder.parameters():
            parameter.copy_(parameter.bfloat16())
        exact = recognise(copy.deepcopy(theirs.decoder).double())
        x = x.bfloat16()
        wanted = run_path(exact, x.double(), tokens, keep=True)
        low = recognise(theirs.decoder.bfloat16())
        ours = low.build()

        def error(found: Tensor) -> float:
            return float((found.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())

        found = error(run_path(low, x, tokens)), error(run_ours(ours, x, simple))
        return Rounded(*found, error(run_path(low, x, tokens, keep=True)))


def drift(kind: str, branches: int = 122) -> tuple[float, float]:
    """How far the rows of one mixing, and of the product of `branches` of them, are from 1.

    Mixings of mHC near the paper's start. `float32`: Sinkhorn and mixing in float32. `rounded`: the mixing rounded to
    bfloat16 when it is applied, as shipped. `bfloat16`: Sinkhorn itself in bfloat16.
    """
    draw = torch.Generator().manual_seed(0)
    logits = 6 * torch.eye(4) - 3 + 0.3 * torch.randn(branches, 4, 4, generator=draw)
    if kind == "bfloat16":
        found = torch.softmax(logits.bfloat16(), dim=-2)
        for step in range(1, 40):
            found = found / found.sum(-1 if step % 2 else -2, keepdim=True)
    else:
        found = sinkhorn(logits, 20)
        found = found.bfloat16() if kind == "rounded" else found
    product = torch.eye(4, dtype=torch.float64)
    for mixing in found.double():
        product = mixing @ product
    return float((found.double().sum(-1) - 1).abs().max()), float((product.sum(-1) - 1).abs().max())


def drift_rows() -> Iterator[str]:
    yield "| Sinkhorn | mixing applied in | one branch | 122 branches |"
    yield "|---|---|---|---|"
    for kind, words in (("float32", "float32"), ("rounded", "bfloat16"), ("bfloat16", "bfloat16")):
        one, all_of_them = drift(kind)
        sinkhorn_in = "bfloat16" if kind == "bfloat16" else "float32"
        yield f"| {sinkhorn_in} | {words} | {one:.0e} | {all_of_them:.0e} |"


def rows() -> Iterator[str]:
    yield "| decoder | scheme | outputs, path | gradients, path | outputs, whole | gradients, whole | float64, path |"
    yield "|---|---|---|---|---|---|---|"
    for name in DECODERS:
        config = shipped(name)[0].config.name
        if name == "gemma3n":
            step = laurel_step()
            with without_casts(torch.float64):
                exact = laurel_step(dtype=torch.float64)
            cells = ["-", "-", f"{step.outputs:.0e}", f"{step.gradients:.0e}", f"{exact.outputs:.0e}"]
        else:
            alone, both = path(name), whole(name)
            exact = path(name, dtype=torch.float64)
            numbers = (alone.outputs, alone.gradients, both.outputs, both.gradients, exact.outputs)
            cells = [f"{number:.0e}" for number in numbers]
        yield "| " + " | ".join([name, config, *cells]) + " |"
    yield ""
    yield (
        "GLM-5-next's larger gradient difference is the conditioning of its linear attention: the gradients of its own "
        f"code move by {sensitivity('glm5_next'):.0e} when its input is moved by one rounding."
    )


def rounded_rows() -> Iterator[str]:
    yield "| decoder | as shipped | ours | without its float32 | |"
    yield "|---|---|---|---|---|"
    for name in DECODERS:
        if name != "gemma3n":
            seen = bfloat16(name)
            ratio = f"x {seen.no_float32 / seen.shipped:.1f}"
            cells = [f"{100 * e:.2g} %" for e in (seen.shipped, seen.ours, seen.no_float32)]
            yield "| " + " | ".join([name, *cells, ratio]) + " |"


def write(document: Path) -> None:
    text = document.read_text()
    for mark, lines in (("conformance", rows()), ("bfloat16", rounded_rows()), ("drift", drift_rows())):
        body = "\n".join(lines)
        text = re.sub(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", rf"\g<1>{body}\n\g<2>", text, flags=re.DOTALL)
    document.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print("\n".join([*rows(), "", *rounded_rows(), "", *drift_rows()]))
    else:
        write(DOCUMENT)
