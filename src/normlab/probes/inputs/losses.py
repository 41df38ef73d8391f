"""Real losses to take gradients of and to judge a skipped layer by: causal, masked, contrastive, or the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from normlab.errors import ConfigError, InputError, unknown

NAMES = ("auto", "causal", "masked", "contrastive", "none")


# (what the model is given, what it should say, where that counts); the last two are [batch, tokens].
Targets = Callable[[object], tuple[object, Tensor, Tensor]]


@dataclass(frozen=True)
class Loss:
    """`function(model, batch)` is a scalar; `chance` is what a model that knows nothing scores, where that is known.

    `targets` says what a loss over a vocabulary asks for at each place, so that more than its mean can be read.
    """

    name: str
    function: Callable[[nn.Module, object], Tensor]
    chance: float | None = None
    targets: Targets | None = None
    guessed: bool = False
    """Nobody said that it is the model's: its predictions did."""

    def __call__(self, model: nn.Module, batch: object) -> Tensor:
        return self.function(model, batch)

    def count(self, batch: object) -> int:
        """How many targets a batch has; its rows where that is not known."""
        if self.targets is not None:
            return int(self.targets(batch)[2].sum())
        ids = token_ids(batch)
        return 1 if ids is None else len(ids)


@dataclass(frozen=True)
class LossReading:
    """The mean loss that gradients were taken of, and what a model that knows nothing scores."""

    name: str
    value: float
    chance: float | None = None


@dataclass(frozen=True)
class HiddenAnew:
    """A batch of which other tokens are hidden: the same text asks something else in every draw."""

    batch: object
    draw: int


def call(model: nn.Module, batch: object) -> object:
    """model(**batch) for a mapping, model(*batch) for a tuple, model(batch) for a tensor."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def token_ids(batch: object) -> Tensor | None:
    """The integer ids [batch, tokens] of a batch, if it has them."""
    if isinstance(batch, Mapping):
        batch = batch.get("input_ids")
    elif isinstance(batch, (tuple, list)):
        batch = batch[0]
    return batch if isinstance(batch, Tensor) and batch.dim() == 2 and not batch.is_floating_point() else None


def padding(batch: object) -> Tensor | None:
    """Where a batch holds text [batch, tokens], if its attention mask says that some of it is padding."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if not isinstance(mask, Tensor) or mask.dim() != 2 or bool((mask != 0).all()):
        return None
    return mask != 0


def with_ids(batch: object, ids: Tensor) -> object:
    """The same batch with other token ids; what belonged to the old ones (labels, a mask of another shape) goes."""
    if isinstance(batch, Mapping):
        old = token_ids(batch)
        same = old is not None and old.shape == ids.shape
        kept = {key: value for key, value in batch.items() if same and _beside(value, ids) and key != "labels"}
        rows = {key: value[: len(ids)] for key, value in batch.items() if _of_decoder(key, value)}
        return {**kept, **rows, "input_ids": ids}
    return (ids, *batch[1:]) if isinstance(batch, (tuple, list)) else ids


def _beside(value: object, ids: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape[:2] == ids.shape


def _of_decoder(key: str, value: object) -> bool:
    return key.startswith("decoder_") and isinstance(value, Tensor)


def narrow(batch: object, rows: int, tokens: int) -> object:
    """The first rows and tokens of a batch, of everything in it that has them."""
    ids = token_ids(batch)
    if ids is None or not isinstance(batch, Mapping):
        return batch if ids is None else with_ids(batch, ids[:rows, :tokens])
    cut = {key: value[:rows, :tokens] for key, value in batch.items() if _beside(value, ids) and key != "labels"}
    rest = {key: value[:rows] for key, value in batch.items() if _of_decoder(key, value)}
    return {**cut, **rest}


def images(batch: object) -> Tensor | None:
    """The pixels [batch, channels, height, width] of a batch, if it has them."""
    if isinstance(batch, Mapping):
        batch = batch.get("pixel_values")
    elif isinstance(batch, (tuple, list)):
        batch = batch[0]
    return batch if isinstance(batch, Tensor) and batch.dim() == 4 and batch.is_floating_point() else None


def with_images(batch: object, pixels: Tensor) -> object:
    if isinstance(batch, Mapping):
        return {"pixel_values": pixels}
    return (pixels, *batch[1:]) if isinstance(batch, (tuple, list)) else pixels


def pick(
    loss: object,
    model: nn.Module,
    batch: object,
    *,
    mask_id: int | None = None,
    special_ids: Sequence[int] = (),
    seed: int = 0,
) -> Loss | None:
    """The loss that is asked for, or the one that this model was made for. `special_ids` are never masked."""
    if isinstance(loss, Loss):
        return loss
    if callable(loss):
        return Loss(getattr(loss, "__name__", type(loss).__name__), loss)
    if loss not in NAMES:
        raise ConfigError(unknown("loss", str(loss), NAMES, hint="or a function of (model, batch)"))
    if loss == "none":
        return None
    if loss == "auto":
        if isinstance(batch, Mapping) and "labels" in batch:
            return Loss("the model's own loss on the labels given", lambda m, b: getattr(call(m, b), "loss"))  # noqa: B009
        loss = _natural(model)
        if loss is None and (size := _predicts_next(model, batch)):
            return replace(_vocabulary_loss("causal", _next, model), chance=math.log(size), guessed=True)
        unread = token_ids(batch) is None and (images(batch) is None or loss != "contrastive")
        if loss is None or unread or (loss == "masked" and mask_id is None):
            return None
    if loss == "contrastive" and images(batch) is not None:
        return Loss("contrastive", _contrastive_images, _log_rows(images(batch)))
    if token_ids(batch) is None:
        raise InputError(f"the {loss} loss needs token ids [batch, tokens]; pass loss=a function of (model, batch)")
    if loss == "masked":
        if mask_id is None:
            raise InputError("the masked loss needs the id of the mask token: pass mask_id=")
        return _vocabulary_loss("masked", _hidden(mask_id, special_ids, seed), model)
    if loss == "contrastive":
        return Loss("contrastive", _contrastive, _log_rows(token_ids(batch)))
    return _vocabulary_loss("causal", _next, model)


def _log_rows(rows: Tensor | None) -> float | None:
    """Chance of telling a pair from the others of its batch; a batch of one has nothing to tell apart."""
    return math.log(len(rows)) if rows is not None and len(rows) > 1 else None


def _natural(model: nn.Module) -> str | None:
    name = type(model).__name__
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal"
    if name.endswith("ForMaskedLM"):
        return "masked"
    causal = getattr(getattr(model, "config", None), "causal", None)
    if causal is not None:  # normlab's own Transformer says it
        return "causal" if causal else None
    if hasattr(model, "get_input_embeddings") and name.endswith("Model") and hasattr(model, "config"):
        return "contrastive"  # an encoder without a head, such as a sentence embedder, or of images
    return None


_CLEARLY = 0.1  # nats: what random weights say is no hint


def _predicts_next(model: nn.Module, batch: object) -> int | None:
    """The vocabulary of a model of somebody's own that says of each token which may be the next; None of any other.

    One that fills in hidden tokens knows the token where it stands better than the one behind it.
    """
    ids = token_ids(batch)
    if ids is None or ids.shape[1] < 2 or type(model).__module__.startswith(("transformers.", "normlab.")):
        return None
    small = narrow(batch, 2, 64)
    ids = token_ids(small)
    assert ids is not None
    with torch.no_grad():
        output = call(model, small)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != ids.shape:
        return None
    # As many numbers as tokens are known: else these may be hidden states.
    tables = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    if not logits.is_floating_point() or logits.shape[-1] not in tables:
        return None
    logits, ids = logits.float(), ids.to(logits.device)
    here = cross_entropy(logits.flatten(0, 1), ids.flatten())
    behind = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    size = int(logits.shape[-1])
    return size if float(behind) < min(float(here), math.log(size)) - _CLEARLY else None


def _log_vocabulary(model: nn.Module) -> float | None:
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    return math.log(size) if size else None


def logits_of(output: object) -> Tensor:
    if isinstance(output, Tensor):
        return output
    found: Tensor | None = getattr(output, "logits", None)
    if found is None:
        raise InputError(
            f"the model returns {type(output).__name__} without logits, so this loss cannot be computed; "
            "pass loss=a function of (model, batch)"
        )
    return found


def _vocabulary_loss(name: str, targets: Targets, model: nn.Module) -> Loss:
    def function(model: nn.Module, batch: object) -> Tensor:
        given, wanted, counts = targets(batch)
        logits = logits_of(call(model, given))[:, : wanted.shape[1]]
        return cross_entropy(logits[counts.to(logits.device)].float(), wanted[counts].to(logits.device))

    return Loss(name, function, _log_vocabulary(model), targets)


def _next(batch: object) -> tuple[object, Tensor, Tensor]:
    """The next token everywhere, padding apart."""
    ids, text = token_ids(batch), padding(batch)
    assert ids is not None
    counts = torch.ones_like(ids, dtype=torch.bool) if text is None else text
    return batch, ids[:, 1:], counts[:, 1:] & counts[:, :-1]


def _hidden(mask_id: int, special_ids: Sequence[int], seed: int) -> Targets:
    def targets(batch: object) -> tuple[object, Tensor, Tensor]:
        draw, batch = (batch.draw, batch.batch) if isinstance(batch, HiddenAnew) else (0, batch)
        ids, text = token_ids(batch), padding(batch)
        assert ids is not None
        # The same places each time: skips compare like with like.
        generator = torch.Generator().manual_seed(seed + draw)
        hidden = (torch.rand(ids.shape, generator=generator) < 0.15).to(ids.device)
        hidden[:, (ids.shape[1] // 2 + draw) % ids.shape[1]] = True
        # No model learns to guess [CLS] or [SEP]: two of them in a short window can be half of the loss.
        hidden &= ~torch.isin(ids, torch.tensor([*special_ids, mask_id], device=ids.device))
        hidden &= hidden if text is None else text
        return with_ids(batch, ids.masked_fill(hidden, mask_id)), ids, hidden

    return targets


def _contrastive(model: nn.Module, batch: object) -> Tensor:
    """Alternate chunks of 16 tokens of a window are a pair, other windows are negatives: mean pooling, InfoNCE."""
    ids, text = token_ids(batch), padding(batch)
    assert ids is not None
    if text is not None:  # as much as every window has, from its first token on
        least, starts = int(text.sum(1).min()), text.int().argmax(1)
        ids = torch.stack([row[start : start + least] for row, start in zip(ids, starts.tolist(), strict=True)])
    first, second = (_pooled(model, with_ids(batch, half)) for half in halves(ids))
    return cross_entropy(first @ second.T / 0.05, torch.arange(len(first), device=first.device))


def _contrastive_images(model: nn.Module, batch: object) -> Tensor:
    """An image and its mirror image, a little shifted, are a pair; other images are negatives: as for text."""
    pixels = images(batch)
    shift = max(1, pixels.shape[-1] // 16)  # type: ignore[union-attr]
    other = pixels.flip(-1).roll((shift, shift), (-2, -1))  # type: ignore[union-attr]
    first, second = (_pooled(model, with_images(batch, view)) for view in (pixels, other))  # type: ignore[arg-type]
    return cross_entropy(first @ second.T / 0.05, torch.arange(len(first), device=first.device))


def _pooled(model: nn.Module, batch: object) -> Tensor:
    output = call(model, batch)
    states = output if isinstance(output, Tensor) else cast("Sequence[Tensor]", output)[0]
    return normalize(states.float().mean(1), dim=-1)


def halves(ids: Tensor, *, chunk: int = 16) -> tuple[Tensor, Tensor]:
    """Even and odd chunks of each row; a token that starts or ends every row, such as [CLS], does so in both halves."""
    framed = len(ids) > 1
    head = ids[:, :1] if framed and bool((ids[:, 0] == ids[0, 0]).all()) else ids[:, :0]
    tail = ids[:, -1:] if framed and bool((ids[:, -1] == ids[0, -1]).all()) else ids[:, :0]
    inside = ids[:, head.shape[1] : ids.shape[1] - tail.shape[1]]
    chunk = min(chunk, max(1, inside.shape[1] // 2))
    count = inside.shape[1] // (2 * chunk)
    pairs = inside[:, : count * 2 * chunk].reshape(len(ids), count, 2, chunk)
    first, second = (torch.cat([head, pairs[:, :, side].flatten(1), tail], 1) for side in (0, 1))
    return first, second
