"""The residual identity, checked on data in every layer call before anything is reported.

Where the architecture is known, or most layers obey, a layer that does not is *accused*: it is a `Breach`, with words
for what it does instead. Where nothing obeys, the structure is unknown, and the model is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.errors import UnsupportedError
from normlab.probes.trace.hooks import Layout, Part, Record, slow_path
from normlab.probes.trace.roles import LayerRoles, is_known
from normlab.probes.trace.structure.between import explain_gaps, name_gaps

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
FITS = 0.02  # of the change: what a sum with other weights may leave over


@dataclass(frozen=True)
class Breach:
    """A layer that does not do to the stream what its row says; `error` is in units of the change."""

    layer: int
    expected: str  # "the layer returns the stream + self_attn + mlp"
    error: float
    instead: str = ""  # "it returns 3 x what it was given + attention + ffn", where that can be told


@dataclass(frozen=True)
class Identity:
    """How far each layer call is from its row, and those that are too far."""

    errors: tuple[float, ...]
    breaches: tuple[Breach, ...] = ()
    uncalled: tuple[str, ...] = ()  # layers of the stack that the forward pass leaves out


def verify(layout: Layout, run: Callable[[], object]) -> Identity:
    """The identity of every layer call; a refusal where the row itself must be wrong."""
    errors: list[float] = []
    found: dict[int, tuple[Breach, Record]] = {}
    gaps: dict[int, float] = {}
    called: set[int] = set()

    def check(record: Record) -> None:
        called.add(id(record.module))
        limit = TOLERANCE.get(record.before.dtype, 1e-4)
        if not record.checks:  # several streams: what is read is a mix, and there is no sum to check here
            errors.append(math.nan)
            return
        failed = next((check for check in record.checks if check[1] > limit), None)  # the first one says where
        if failed is not None:
            found[record.index] = Breach(record.index, *failed), record
        if record.gap > limit:
            gaps[record.index] = record.gap
        errors.append(max(error for _, error in record.checks))

    with layout.tracer(check, verify=True), torch.no_grad(), slow_path():
        run()
    if not errors:
        raise UnsupportedError(
            f"none of the {len(layout.layers)} layers that were found ({layout.layers[0][0]!r}, ...) was called by "
            "the model's forward pass, so there is nothing to measure"
        )
    for breach, record in found.values():
        if not _trusted(layout.roles[id(record.module)], breach, len(found), len(errors)):
            _refuse(layout, breach, record)
    breaches = _told(layout, found, run) if found else ()
    if gaps:
        breaches += _between(layout, gaps, len(errors), run)
    if type(layout) is Layout and not layout.stack:  # one stack, one pass through it
        layout.stops_at = len(errors) - 1
    uncalled = tuple(name for name, layer in layout.layers if id(layer) not in called)
    layout.layers = [(name, layer) for name, layer in layout.layers if id(layer) in called]
    return Identity(tuple(errors), breaches, uncalled)


def _trusted(row: LayerRoles, breach: Breach, failed: int, calls: int) -> bool:
    """Is the row more to be believed than the layer? A row of the table is, and one that most layers obey."""
    return math.isfinite(breach.error) and (is_known(row) or 2 * failed < calls)


def _refuse(layout: Layout, breach: Breach, record: Record) -> None:
    name = next(name for name, layer in layout.layers if layer is record.module)
    row, limit = layout.roles[id(record.module)], TOLERANCE.get(record.before.dtype, 1e-4)
    raise UnsupportedError(
        f"the residual identity fails in layer {breach.layer} ({name!r}, {row.layer}): expected that {breach.expected}, "
        f"but the difference is {breach.error:.2g} of the change (limit {limit:g}); nothing is reported, because what is "
        "added to the stream is not known. If the layer is your own, pass its roles: nl.diagnose(..., roles=LayerRoles(...))"
    )


def _told(layout: Layout, found: dict[int, tuple[Breach, Record]], run: Callable[[], object]) -> tuple[Breach, ...]:
    """Breaches with words; a second pass shows which of them are left to chance."""
    again: dict[int, Record] = {}
    with layout.tracer(lambda record: again.update({record.index: record}), verify=True), torch.no_grad(), slow_path():
        run()
    told = []
    for index, (breach, record) in found.items():
        row, other = layout.roles[id(record.module)], again.get(index)
        told.append(Breach(index, breach.expected, breach.error, _instead(row, record, other)))
    return tuple(told)


def _instead(row: LayerRoles, record: Record, again: Record | None) -> str:
    """What the layer does with what it was given and what its branches return."""
    parts = record.parts
    if not parts or record.after.shape != record.before.shape:
        return ""
    if again is not None and _far(again.before, record.before) < 1e-6 < _far(again.after, record.after):
        return "what it returns differs between two passes over the same text"
    normed = bool(row.branches and row.branches[-1].out)
    basis = [("what it was given", record.before), *((_word(part), part.added) for part in parts)]
    if normed:
        basis.append(("the normed sum", parts[-1].after))
    weights, left = _fitted(record.after, [tensor for _, tensor in basis], record.after - record.before)
    if left < FITS:
        return _sum([(weight, name) for weight, (name, _) in zip(weights, basis, strict=True)])
    return _shape(record.after, parts[-1].after)


def _word(part: Part) -> str:
    return {"ffn": "the FFN"}.get(part.kind, part.kind.replace("_", "-"))


def _fitted(target: Tensor, basis: list[Tensor], change: Tensor) -> tuple[list[float], float]:
    """Weights of the sum of the basis that comes nearest to the target, and what it leaves, over the change."""
    columns = torch.stack([each.detach().double().flatten() for each in basis], 1)
    wanted = target.detach().double().flatten()
    sizes = columns.norm(dim=0).clamp_min(1e-30)
    weights = torch.linalg.lstsq((columns / sizes).cpu(), wanted.cpu().unsqueeze(1)).solution.squeeze(1) / sizes.cpu()
    rest = wanted.cpu() - columns.cpu() @ weights
    scale = torch.maximum(change.detach().double().norm(), 1e-2 * wanted.norm()).clamp_min(1e-30)
    return weights.tolist(), float(rest.norm() / scale.cpu())


def _sum(terms: list[tuple[float, str]]) -> str:
    kept = [(weight, name) for weight, name in terms if abs(weight) > 0.01]
    lost = [name for weight, name in terms if abs(weight) <= 0.01 and name != "what it was given"]
    if not kept:
        return "it returns nothing"
    shown = " + ".join(name if abs(weight - 1) < 0.01 else f"{weight:.3g} x {name}" for weight, name in kept)
    return f"it returns {shown}" + (
        f", and drops {' and '.join(lost)}" if lost and "the normed sum" not in shown else ""
    )


def _shape(after: Tensor, expected: Tensor) -> str:
    """Beside what was expected: scaled token by token, displaced, or something else."""
    after, expected = after.detach().float(), expected.detach().float()
    if after.shape != expected.shape or after.dim() != 3:
        return ""
    cosine = torch.nn.functional.cosine_similarity(after, expected, dim=-1)
    if float(cosine.min()) > 0.995:
        sizes = after.norm(dim=-1)
        even = float(sizes.std() / sizes.mean().clamp_min(1e-30)) < 0.01
        return "the sum is normed once more on its way out" if even else "the sum is scaled anew for every token"
    for places in (1, -1, 2, -2):
        moved = expected.roll(places, 1)
        if _far(after[:, 3:-3], moved[:, 3:-3]) < FITS:
            return f"the sum belongs to the token {abs(places)} {'before' if places > 0 else 'behind'}"
    return f"the sum is changed on its way out (mean cosine {float(cosine.mean()):.3f} with what was expected)"


def _far(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return math.inf
    return float((one.float() - other.float()).norm() / other.float().norm().clamp_min(1e-30))


def _between(layout: Layout, gaps: dict[int, float], depth: int, run: Callable[[], object]) -> tuple[Breach, ...]:
    """What leaves a layer is not what enters the next: say what does.

    No architecture of the table changes the stream between layers; mixing with earlier ones is a scheme of its own.
    """
    found = explain_gaps(layout.model, [layer for _, layer in layout.layers], run)
    known = all(is_known(layout.roles[id(layer)]) for _, layer in layout.layers)
    earlier = any(source.layer < gap.layer - 1 for gap in found for source in gap.sources)
    if known and not earlier:
        words = {gap.layer: str(gap) for gap in found}
        return tuple(
            Breach(layer, f"layer {layer} reads what layer {layer - 1} returns", error, words.get(layer, ""))
            for layer, error in gaps.items()
        )
    layout.between = name_gaps(found, depth)
    shown = "; ".join(map(str, found[:3])) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
    layout.notes.append(
        f"{layout.between}: {shown}. Layers were measured from what they read to what they return; what the model adds "
        "between them is in no layer's row"
    )
    return ()
