"""`nl.swap(model, "block_attn_res")`: a scheme into a Hugging Face model, in place, with a check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from normlab.errors import ConfigError, InputError, UnsupportedError, unknown
from normlab.probes.inputs.batches import as_batches
from normlab.probes.inputs.losses import Loss, call, pick
from normlab.results import Result
from normlab.schemes import Scheme, SchemeConfig, label, parse_scheme
from normlab.schemes.names import scheme as scheme_of
from normlab.schemes.placement import PlacementConfig
from normlab.surgery.anatomy import Anatomy, anatomy
from normlab.surgery.calibrate import Sizes, fold_factors, measure, set_sizes
from normlab.surgery.classes import dress, is_swapped, undress
from normlab.surgery.splice import build, check, splice, unsplice, way_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Calibrate = Literal["auto", "off"]
ROUNDING = 256  # of the type's eps, in units of the largest output: what rounding may change


@dataclass(frozen=True)
class SwapReport(Result):
    """What a swap did to a model. `max_abs_diff` is of logits (or hidden states), whose largest is `largest`."""

    scheme: str
    architecture: str
    placement: str
    preserved: bool
    max_abs_diff: float
    largest: float
    loss_before: float | None
    loss_after: float | None
    why_not: str | None
    new_parameters: int
    share: float
    train_first: tuple[str, ...]
    notes: tuple[str, ...] = ()
    kind: str = "swap"

    @property
    def text(self) -> str:
        """The report in sentences."""
        lines = [f"{self.architecture} ({self.placement}) now has the residual path of {self.scheme}."]
        kept = "It computes the same function" if self.preserved else "It does NOT compute the same function"
        lines.append(f"{kept}: outputs differ by at most {self.max_abs_diff:.2g} (the largest is {self.largest:.3g}).")
        if self.loss_before is not None and self.loss_after is not None:
            jump = self.loss_after - self.loss_before
            lines.append(f"Loss {self.loss_before:.5f} before, {self.loss_after:.5f} after ({jump:+.5f}).")
        if self.why_not:
            lines.append(f"Why: {self.why_not}.")
        lines.append(f"New parameters: {self.new_parameters:,} ({100 * self.share:.3g} % of the model).")
        if self.train_first:
            lines.append(f"Train first: {', '.join(self.train_first)}; then everything.")
        return "\n".join([*lines, *self.notes])


def swap(
    model: PreTrainedModel,
    scheme: str | SchemeConfig,
    *,
    batches: object = None,
    calibrate: Calibrate = "auto",
    strict: bool = False,
    **options: object,
) -> SwapReport:
    """Put a scheme into a Hugging Face model, in place; what you leave out of its options is neutral.

    `batches` (as for `nl.diagnose`) are what the check, and a calibration where one is needed, runs on; without them,
    random tokens. With `strict` a swap that changes the function is undone and raises.
    """
    if calibrate not in ("auto", "off"):
        raise ConfigError(unknown("calibrate", str(calibrate), ["auto", "off"]))
    if is_swapped(model):
        held = label(parse_stored(model))
        raise UnsupportedError(f"this model is swapped already ({held}); load the original again, or nl.fold it first")
    start = starting(scheme, options)
    body = anatomy(model)
    check(start, body)
    shown = probe_batches(model, batches)
    notes = (
        [] if batches is not None else ["The check ran on random tokens; give batches= (or --text) for real losses."]
    )
    mode = model.training
    model.eval()
    try:
        report = _operate(body, start, shown, calibrate=calibrate, notes=notes, strict=strict)
    finally:
        model.train(mode)
    return report


def parse_stored(model: PreTrainedModel) -> SchemeConfig:
    from normlab.surgery.classes import stored_scheme

    return stored_scheme(model.config)


def starting(scheme: str | SchemeConfig, options: dict[str, object]) -> SchemeConfig:
    """The neutral setting of a scheme, with what was asked for on top."""
    config = scheme_of(scheme, **options) if isinstance(scheme, str) else parse_scheme(scheme).replace(**options)
    if _folds(config):
        return config
    plain = type(config)().to_dict()  # type: ignore[call-arg]
    asked = {key: value for key, value in config.to_dict().items() if value != plain[key] or key in options}
    neutral = config.neutral()
    if neutral is None:
        if "alpha" in type(config).model_fields and "alpha" not in asked:
            return config.replace(alpha=1.0)  # KEEL: the gains of its norms hold the size of the stream
        return config
    return neutral.replace(**{key: value for key, value in asked.items() if key != "name"})


def _folds(config: SchemeConfig) -> bool:
    """Does a number stand behind the norm, whose inverse the norm's gain can take?"""
    return isinstance(config, PlacementConfig) and callable(config.row.c)


def probe_batches(model: PreTrainedModel, batches: object) -> list[object]:
    """What a model is asked before and after an operation: these batches, or random tokens."""
    device = next(model.parameters()).device
    if device.type == "meta":
        raise UnsupportedError(f"{type(model).__name__} is on the meta device, without weights: load them first")
    if batches is not None:
        found = as_batches(batches, model)
        named = getattr(model, "main_input_name", "input_ids")
        found = [{named: batch} if isinstance(batch, Tensor) else batch for batch in found]
        for batch in found:
            _check_tokens(model, batch)
        return found
    generator = torch.Generator().manual_seed(0)
    if getattr(model, "main_input_name", "input_ids") == "pixel_values":
        config = model.config
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        pixels = torch.randn(2, getattr(config, "num_channels", 3), size, size, generator=generator)
        return [{"pixel_values": pixels.to(device, next(model.parameters()).dtype)}]
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    vocabulary = embedding.num_embeddings
    ids = torch.randint(min(10, vocabulary - 1), vocabulary, (2, 16), generator=generator).to(device)
    return [{"input_ids": ids, "decoder_input_ids": ids} if _has_halves(model) else {"input_ids": ids}]


def _has_halves(model: PreTrainedModel) -> bool:
    """An encoder and a decoder, each with a residual stream."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _check_tokens(model: PreTrainedModel, batch: object) -> None:
    """Raise for token ids that the embedding would stumble over."""
    ids = batch.get("input_ids") if isinstance(batch, dict) else None
    embedding = model.get_input_embeddings()
    if not isinstance(ids, Tensor) or not isinstance(embedding, nn.Embedding) or not ids.numel():
        return
    if ids.is_floating_point():
        raise InputError(f"token ids are whole numbers, but the batch has {str(ids.dtype).removeprefix('torch.')}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= embedding.num_embeddings:
        wrong = low if low < 0 else high
        raise InputError(
            f"a batch has the token {wrong}, but {type(model).__name__} knows tokens from 0 to "
            f"{embedding.num_embeddings - 1}: is it another tokenizer's?"
        )


@dataclass(frozen=True)
class Answers:
    """What a model answers to the batches: outputs, and its loss where it has one."""

    outputs: tuple[Tensor, ...]
    loss: float | None


@torch.no_grad()
def observe(model: nn.Module, batches: Sequence[object], loss: Loss | None) -> Answers:
    outputs = tuple(answer(call(model, batch)).detach().float().cpu() for batch in batches)
    values = [float(loss(model, batch)) for batch in batches] if loss is not None else []
    return Answers(outputs, sum(values) / len(values) if values else None)


def answer(output: Any) -> Tensor:
    """Logits, or the last hidden state."""
    for name in ("logits", "last_hidden_state"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    first = output[0]
    assert isinstance(first, Tensor)
    return first


def largest_difference(one: Answers, two: Answers) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one.outputs, two.outputs, strict=True))


def _operate(
    body: Anatomy, start: SchemeConfig, batches: list[object], *, calibrate: Calibrate, notes: list[str], strict: bool
) -> SwapReport:
    model = body.model
    loss = _loss(model, batches)
    before = observe(model, batches, loss)
    if any(bool(out.isnan().any()) for out in before.outputs):
        raise InputError(
            f"{type(model).__name__} answers these batches with NaN, so nothing can be compared; nothing was changed"
        )
    way = way_of(start)
    sizes = measure(body, batches) if way != "keep" and calibrate == "auto" else None
    with torch.inference_mode(False):  # parameters that are made inside of it could never be trained
        scheme = build(start, body)
    undo: list[tuple[Tensor, Tensor]] = []
    count = sum(p.numel() for p in model.parameters())
    try:
        if way == "keep":
            undo = fold_factors(body, scheme)
        with torch.inference_mode(False):
            splice(body, scheme, way=way)
        if sizes is not None:
            set_sizes(body, scheme, sizes)
        dress(model, start)
        after = observe(model, batches, loss)
        report = _report(body, scheme, (before, after), count=count, sizes=sizes, notes=notes)
        if strict and not report.preserved:
            raise UnsupportedError(
                f"{report.scheme} does not preserve this model: {report.why_not}; nothing was changed"
            )
    except BaseException:
        undo_swap(body, undo)
        raise
    return report


def undo_swap(body: Anatomy, changed: Iterable[tuple[Tensor, Tensor]]) -> None:
    """The model as it was."""
    unsplice(body)
    if is_swapped(body.model):
        undress(body.model)
    with torch.no_grad():
        for parameter, value in changed:
            parameter.copy_(value)


def _loss(model: nn.Module, batches: Sequence[object]) -> Loss | None:
    found = pick("auto", model, batches[0])
    return None if found is None or found.name == "contrastive" else found


def _report(
    body: Anatomy, scheme: Scheme, seen: tuple[Answers, Answers], *, count: int, sizes: Sizes | None, notes: list[str]
) -> SwapReport:
    before, after = seen
    dtype = next(body.layers[0].parameters()).dtype
    largest = max(float(out.abs().max()) for out in before.outputs)
    difference = largest_difference(before, after)
    preserved = difference <= min(0.5, ROUNDING * torch.finfo(dtype).eps) * largest
    new = sum(p.numel() for p in scheme.parameters())
    config = scheme.config
    if _has_halves(body.model):
        notes = [
            *notes,
            f"Of its two halves one was swapped, the {type(body.owner).__name__} with {len(body.layers)} layers.",
        ]
    if sizes is not None and not preserved:
        notes = [*notes, "New norms have the gains that were measured on the batches (the median size of each place)."]
    return SwapReport(
        scheme=label(config),
        architecture=type(body.model).__mro__[2].__name__,
        placement=body.placement,
        preserved=preserved,
        max_abs_diff=difference,
        largest=largest,
        loss_before=before.loss,
        loss_after=after.loss,
        why_not=None if preserved else _why_not(config, body),
        new_parameters=new,
        share=new / count,
        train_first=tuple(dict.fromkeys(name.split(".")[0] for name, _ in scheme.named_parameters())),
        notes=tuple(notes),
    )


def _why_not(config: SchemeConfig, body: Anatomy) -> str:
    way = way_of(config)
    if way == "keep":
        neutral = config.neutral()
        if neutral is not None and neutral != config:
            return f"the options asked for are not the neutral ones; {label(neutral)} would start as the same function"
        return f"{label(config)} has no neutral setting"
    if way == "place":
        return f"{config.name} has its norms elsewhere than {body.placement}, and a norm drops the size of each token"
    return f"{config.name} brings norms of its own, and a norm drops the size of each token"
