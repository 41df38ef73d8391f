"""`nl.prune(model, [17])`: layers out of a Hugging Face model, in place; what is left loads as what it is.

Which layers: given, or chosen by what the loss says when they are left out. A config speaks of layers in many places: a
list of as many entries as there are layers is cut with them, numbers of layers are counted again, and the pruned model is
saved, loaded and compared with the whole one that passes those layers by. If they differ, nothing is changed.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normlab.errors import ConfigError, InputError, UnsupportedError
from normlab.probes.diagnosis import Diagnosis
from normlab.probes.inputs.hub import saving
from normlab.probes.inputs.losses import Loss, call, pick
from normlab.results import Result
from normlab.stats import t_reach
from normlab.surgery.anatomy import Anatomy, anatomy
from normlab.surgery.classes import is_swapped
from normlab.surgery.cut import cut
from normlab.surgery.heal import Heal, heal, neighbours
from normlab.surgery.swap import Answers, answer, largest_difference, observe, probe_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ChosenLayer:
    """A layer that was chosen, and how the loss moves without it (beside those chosen before): mean and its error."""

    layer: int
    change: float
    error: float | None


@dataclass(frozen=True)
class PruneReport(Result):
    """`difference`: of the reloaded model from the whole one that passes these layers by."""

    removed: tuple[int, ...]
    kept: tuple[int, ...]
    parameters_removed: int
    share: float
    difference: float
    loss_before: float | None
    loss_after: float | None
    loss_healed: float | None
    chosen: tuple[ChosenLayer, ...] = ()
    kind: str = "prune"

    @property
    def text(self) -> str:
        layers = ", ".join(str(layer) for layer in self.removed)
        lines = [
            f"Layers {layers} are out: {len(self.kept)} are left, {self.parameters_removed:,} parameters fewer "
            f"({100 * self.share:.1f} %).",
            f"Saved and loaded again it differs by {self.difference:.2g} from the model that passes them by.",
        ]
        if self.loss_before is not None and self.loss_after is not None:
            healed = "" if self.loss_healed is None else f", {self.loss_healed:.4f} after healing"
            lines.append(f"Loss {self.loss_before:.4f} before, {self.loss_after:.4f} after{healed}.")
        return "\n".join(lines)


def prune(
    model: nn.Module,
    layers: Sequence[int] | None = None,
    *,
    from_: Diagnosis | None = None,
    most: int | None = None,
    max_loss: float | None = None,
    batches: object = None,
    heal: Heal | None = None,
) -> PruneReport:
    """Take layers out. Without `layers`, at most `most` of those that the loss misses least, or as many as cost `max_loss`.

    `from_` is a diagnosis with skips: its order is taken. `batches` are what losses are measured on; healing trains on
    others. Chosen one by one: each choice is made without the layers chosen before.
    """
    chosen: tuple[ChosenLayer, ...] = ()
    if layers is not None and not (from_ is None and most is None and max_loss is None):
        raise ConfigError(
            "layers= names what goes out, and from_=, most= and max_loss= choose it: give one or the other"
        )
    if layers is None:
        chosen = choose(model, batches, from_=from_, most=most, max_loss=max_loss)
        layers = [choice.layer for choice in chosen]
    body = _operable(model)
    removed = _checked(layers, len(body.layers))
    shown = probe_batches(body.model, batches)
    loss = None if batches is None else pick("auto", model, shown[0])
    if heal is not None and loss is None:
        raise InputError("healing is judged by the loss on text that it does not train on: pass batches=")
    with _evaluating(model):
        return _prune(body, removed, shown, loss=loss, chosen=chosen, how=heal)


def choose(
    model: nn.Module,
    batches: object,
    *,
    from_: Diagnosis | None = None,
    most: int | None = None,
    max_loss: float | None = None,
) -> tuple[ChosenLayer, ...]:
    """Layers that the loss misses least, one by one, each without those chosen before."""
    body = _operable(model)
    wanted = _wanted(most, max_loss, len(body.layers))
    shown = probe_batches(body.model, batches)
    loss = pick("auto", model, shown[0])
    if loss is None or batches is None:
        raise InputError("to choose layers, the loss on text decides: pass batches= of text, or name the layers")
    with _evaluating(model):
        return tuple(_choose(body, shown, loss, wanted, order=_order(from_, len(body.layers)), max_loss=max_loss))


def _operable(model: nn.Module) -> Anatomy:
    if is_swapped(model):
        raise UnsupportedError("this model is swapped; nl.fold it, prune it, and swap it again")
    return anatomy(model)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    mode = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(mode)


def _wanted(most: int | None, max_loss: float | None, depth: int) -> int:
    if most is None and max_loss is None:
        raise ConfigError("say which layers (layers=[...]), how many (most=), or what they may cost (max_loss=)")
    if most is not None and not 1 <= most < depth:
        raise ConfigError(f"most={most}: this model has {depth} layers, of which 1 to {depth - 1} can be taken out")
    return depth - 1 if most is None else most


def _checked(layers: Sequence[int], depth: int) -> tuple[int, ...]:
    named = layers if isinstance(layers, Sequence) and not isinstance(layers, str) else [layers]
    for layer in named:
        if not isinstance(layer, int) or isinstance(layer, bool) or named is not layers:
            raise ConfigError(f"layers= is a list of whole numbers, such as [4, 7], but got {layers!r}")
    wrong = [layer for layer in layers if not 0 <= layer < depth]
    if wrong:
        raise ConfigError(f"there is no layer {wrong[0]}: this model has {depth}, counted from 0 to {depth - 1}")
    found = tuple(sorted(set(layers)))
    if len(found) != len(layers):
        raise ConfigError(f"a layer is named twice in {list(layers)}")
    if not found:
        raise ConfigError("no layer was named, or none costs as little as was asked for: nothing to take out")
    if len(found) == depth:
        raise ConfigError(f"these are all {depth} layers of the model: leave at least one")
    return found


# -- which ------------------------------------------------------------------------------------------------------------
def _order(diagnosis: Diagnosis | None, depth: int) -> list[int] | None:
    """The layers of a diagnosis, those first whose absence costs least with what its error allows."""
    if diagnosis is None:
        return None
    report = getattr(diagnosis, "causal", None)
    if report is None or len(report.change) != depth:
        raise InputError(
            "from_ is no diagnosis of this model with skipped layers; run nl.diagnose(model, batches) first"
        )
    reach = t_reach(report.batches) if report.batches > 1 else 0.0
    cost = [c + reach * (0.0 if math.isnan(e) else e) for c, e in zip(report.change, report.error, strict=True)]
    return sorted(range(depth), key=cost.__getitem__)


def _choose(
    body: Anatomy, batches: list[object], loss: Loss, most: int, *, order: list[int] | None, max_loss: float | None
) -> list[ChosenLayer]:
    start = _losses(body.model, batches, loss)
    chosen: list[ChosenLayer] = []
    while len(chosen) < most:
        gone = {choice.layer for choice in chosen}
        left = [layer for layer in (order or range(len(body.layers))) if layer not in gone]
        tried = left[:1] if order else left
        found = [_cost(body, sorted({*gone, layer}), batches, loss, start) for layer in tried]
        best = min(range(len(tried)), key=lambda at: found[at][0])
        change, error = found[best]
        bound = change + (t_reach(len(batches)) * error if error is not None else 0.0)
        if max_loss is not None and bound > max_loss:
            break
        chosen.append(ChosenLayer(tried[best], change, error))
    return chosen


def _cost(
    body: Anatomy, gone: list[int], batches: list[object], loss: Loss, start: list[float]
) -> tuple[float, float | None]:
    with passed_by(body, gone):
        changes = [after - before for after, before in zip(_losses(body.model, batches, loss), start, strict=True)]
    error = statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else None
    return statistics.fmean(changes), error


@torch.no_grad()
def _losses(model: nn.Module, batches: list[object], loss: Loss) -> list[float]:
    return [float(loss(model, batch)) for batch in batches]


class _Passes:
    """The forward of a layer that lets the stream pass by."""

    def __init__(self, several: int) -> None:
        self.several = several

    def __call__(self, hidden_states: Tensor, *args: object, **kwargs: object) -> object:
        return (hidden_states, *[None] * (self.several - 1)) if self.several else hidden_states


@contextmanager
def passed_by(body: Anatomy, layers: Sequence[int]) -> Iterator[None]:
    """The whole model, whose stream passes these layers by."""
    several = _several(body)
    for layer in layers:
        body.layers[layer].forward = _Passes(several)
    try:
        yield
    finally:
        for layer in layers:
            del body.layers[layer].forward


def _several(body: Anatomy) -> int:
    """How many values a layer returns: 0 for the stream alone."""
    kept: list[int] = []

    def look(_: nn.Module, args: tuple[object, ...], output: object) -> None:
        kept.append(len(output) if isinstance(output, tuple) else 0)

    handle = body.layers[0].register_forward_hook(look)
    try:
        with torch.no_grad():
            call(body.model, probe_batches(body.model, None)[0])
    finally:
        handle.remove()
    return kept[0]


# -- take them out ------------------------------------------------------------------------------------------------------
def _prune(
    body: Anatomy,
    removed: tuple[int, ...],
    batches: list[object],
    *,
    loss: Loss | None,
    chosen: tuple[ChosenLayer, ...],
    how: Heal | None,
) -> PruneReport:
    model = body.model
    depth, count = len(body.layers), sum(p.numel() for p in model.parameters())
    kept = tuple(layer for layer in range(depth) if layer not in removed)
    before = observe(model, batches, loss)
    with passed_by(body, removed):
        skipped = observe(model, batches, loss)
    undo = cut(body, kept)
    try:
        difference = _reloaded_difference(model, batches, skipped)
        if difference > 0:
            raise UnsupportedError(
                f"without layers {list(removed)} a reloaded {type(model).__name__} differs by {difference:.2g} from the "
                "model that passes them by: its config says something of layers that is not known here; nothing was changed"
            )
    except BaseException:
        undo()
        raise
    healed = None
    if how is not None:
        assert loss is not None
        beside = [body.layers[kept[at]] for at in neighbours(kept, depth)]
        heal(model, beside, loss, how)
        healed = observe(model, batches, loss).loss
    gone = count - sum(p.numel() for p in model.parameters())
    return PruneReport(removed, kept, gone, gone / count, difference, before.loss, skipped.loss, healed, chosen)


@torch.no_grad()
def _reloaded_difference(model: PreTrainedModel, batches: list[object], skipped: Answers) -> float:
    with tempfile.TemporaryDirectory() as folder, saving(folder):
        model.save_pretrained(folder)
        again: nn.Module = type(model).from_pretrained(folder, dtype=next(model.parameters()).dtype)
    again.to(model.device).eval()
    outputs = tuple(answer(call(again, batch)).float().cpu() for batch in batches)
    return largest_difference(Answers(outputs, None), skipped)
