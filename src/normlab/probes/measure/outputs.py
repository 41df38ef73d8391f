"""What the model says: its loss beside chance and token frequencies, how sure it is, and whether context helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normlab.probes.inputs.losses import Loss, call, logits_of, narrow, padding, token_ids, with_ids
from normlab.probes.measure.table import Number, Real, Sparse
from normlab.probes.trace.hooks import Layout, Record, slow_path
from normlab.probes.trace.tensors import first_tensor


@dataclass(frozen=True)
class OutputReading(Sparse):
    """Nats per token, means over the tokens that the loss counts."""

    loss: Real
    chance: Number
    frequencies: Real  # what the frequencies of single tokens of this text alone would score
    entropy: Real  # of the model's own predictions: about the loss where it knows what it does not know
    favourite: Real  # share of the places where its commonest prediction comes first
    early: Number = None  # loss on the first eighth of a window, behind its first token
    late: Number = None  # on the last half
    short: Number = None  # what the last half would gain if only the last 8 tokens or so were given
    short_error: Number = None
    leak: Number = None  # change of earlier predictions when the last token changes, over their own size
    leak_layer: int | None = None  # where that begins
    leak_part: str | None = None
    repeat: Number = None  # change between two passes over the same text, over their own size
    sharpness: Number = None  # the factor on the logits at which the loss is least
    kind: str | None = None  # of the loss: causal, masked
    normed: bool | None = None  # False: the head reads what leaves the last layer as it is


class OutputStatistics:
    """What the logits of several batches say; a pass that is made anyway can be listened to."""

    def __init__(self, loss: Loss, *, tokens: int = 4096) -> None:
        self.loss, self.tokens, self.counted = loss, tokens, 0
        self.nats: list[Tensor] = []
        self.sure: list[Tensor] = []
        self.first: list[Tensor] = []
        self.early: list[Tensor] = []
        self.late: list[Tensor] = []
        self.sharper: list[Tensor] = []
        self.seen: list[Tensor] = []
        self.tables: list[Tensor] = []  # nats [rows, tokens] of each batch
        self.vocabulary = 0

    @property
    def enough(self) -> bool:
        return self.counted >= self.tokens

    def add(self, logits: Tensor, targets: Tensor, kept: Tensor) -> None:
        logits = logits.detach().float()[:, : targets.shape[1]]
        logs = logits.log_softmax(-1)
        nll = -logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        self.nats.append(nll[kept])
        self.tables.append(nll)
        self.sure.append(torch.special.entr(logs.exp()).sum(-1)[kept])
        some = slice(None, None, max(1, int(kept.sum()) // 128))
        self.sharper.append(_sharper(logits[kept][some], targets[kept][some]))
        self.first.append(logits.argmax(-1)[kept])
        self.seen.append(targets[kept])
        if self.loss.name == "causal" and targets.shape[1] >= 16:
            eighth, half = max(2, targets.shape[1] // 8), targets.shape[1] // 2
            self.early.append(nll[:, 1:eighth][kept[:, 1:eighth]])
            self.late.append(nll[:, half:][kept[:, half:]])
        self.counted += int(kept.sum())
        self.vocabulary = logits.shape[-1]


def listening(loss: Loss | None) -> OutputStatistics | None:
    """For a loss that asks for what a plain pass over a batch returns: the next token."""
    return OutputStatistics(loss) if loss is not None and loss.targets is not None and loss.name == "causal" else None


@torch.no_grad()
def read_outputs(
    layout: Layout, batches: Sequence[object], loss: Loss, heard: OutputStatistics | None = None
) -> OutputReading | None:
    """None where the loss does not come from logits over a vocabulary. `heard` is what an earlier pass has told."""
    if loss.targets is None:
        return None
    said = heard or OutputStatistics(loss)
    with slow_path():
        for batch in batches if heard is None else ():
            given, targets, kept = loss.targets(batch)
            said.add(logits_of(call(layout.model, given)), targets, kept)
            if said.enough:
                break
    if not said.counted:
        return None
    answers = torch.cat(said.first)
    leak = _leak(layout, batches[0]) if loss.name == "causal" else None
    cut = _shortened(layout, batches, said) if loss.name == "causal" else None
    place, part = _leaking(layout, batches[0]) if leak is not None and leak > LEAK else (None, None)
    return OutputReading(
        loss=float(torch.cat(said.nats).mean()),
        chance=loss.chance,
        frequencies=frequency_loss(torch.cat(said.seen), said.vocabulary),
        entropy=float(torch.cat(said.sure).mean()),
        favourite=float(answers.bincount().max()) / len(answers),
        early=float(torch.cat(said.early).mean()) if said.early else None,
        late=float(torch.cat(said.late).mean()) if said.late else None,
        short=None if cut is None else cut.gain,
        short_error=None if cut is None else cut.error,
        leak=leak,
        leak_layer=place,
        leak_part=part,
        repeat=_repeat(layout, batches[0]),
        sharpness=FACTORS[int(torch.cat(said.sharper, 1).mean(1).argmin())],
        kind=loss.name,
        normed=_normed(layout, batches[0]),
    )


# What the logits are multiplied by: at 1 a trained model does best.
FACTORS = tuple(2 ** (step / 2) for step in range(-8, 9))


def _sharper(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each target [factors, targets] for logits that are sharper or flatter."""
    return torch.stack([cross_entropy(logits * factor, targets, reduction="none") for factor in FACTORS])


def _repeat(layout: Layout, batch: object) -> float:
    """Nothing may be left to chance in a model that is not in training: dropout, noise on a router."""
    small = narrow(batch, 2, 64)
    with slow_path():
        a, b = (logits_of(call(layout.model, small)).float() for _ in range(2))
    return _change(a, b)


def _normed(layout: Layout, batch: object) -> bool | None:
    """Does anything stand between the last layer and the head? None where one of them is not found."""
    find = getattr(layout.model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if not isinstance(head, nn.Module) or not layout.layers:
        return None
    seen: dict[str, Tensor] = {}
    handles = [
        layout.layers[-1][1].register_forward_hook(lambda _m, _a, out: seen.update(last=first_tensor(out).detach())),
        head.register_forward_pre_hook(lambda _m, args: seen.update(read=args[0].detach())),
    ]
    with slow_path(handles):
        call(layout.model, narrow(batch, 2, 64))
    last, read = seen.get("last"), seen.get("read")
    if last is None or read is None or last.shape != read.shape:
        return None
    return float((last.float() - read.float()).norm()) > 1e-5 * float(last.float().norm())


def frequency_loss(tokens: Tensor, vocabulary: int) -> float:
    """-log p of each token from the counts of the others, smoothed by the constant that serves best."""
    counts = tokens.bincount(minlength=vocabulary).double()
    others, total = counts[tokens] - 1, len(tokens) - 1
    best = math.inf
    for extra in (1.0, 0.3, 0.1, 0.03, 0.01, 0.001):
        best = min(best, float(-((others + extra) / (total + extra * vocabulary)).log().mean()))
    return best


SHORT = 8  # tokens


@dataclass(frozen=True)
class Shortened:
    """What the late half of windows gains if only a few tokens before each target are given, over windows."""

    gain: float
    error: float


def _shortened(layout: Layout, batches: Sequence[object], said: OutputStatistics) -> Shortened | None:
    """The late half of every window cut into pieces of `SHORT`, and the second half of each piece compared."""
    small = sum(parameter.numel() for parameter in layout.model.parameters()) < 20_000_000
    gains: list[Tensor] = []
    left = 2048 if small else 512  # tokens: in a large model these cost
    for batch, known in zip(batches, said.tables, strict=False):
        ids = token_ids(batch)
        half = 0 if ids is None else ids.shape[1] // 2 // SHORT * SHORT
        rows = left // max(half, 1)
        if ids is None or padding(batch) is not None or half < 4 * SHORT or not rows:
            break
        ids = ids[:rows, -half:]
        pieces = ids.reshape(-1, SHORT)
        with slow_path():
            logits = logits_of(call(layout.model, with_ids(batch, pieces))).float()[:, SHORT // 2 : -1]
        nats = cross_entropy(logits.flatten(0, 1), pieces[:, SHORT // 2 + 1 :].flatten(), reduction="none")
        whole = known[: len(ids), -(half - 1) :]  # of the targets behind the first of these tokens
        places = torch.arange(half - 1).reshape(1, -1) % SHORT >= SHORT // 2
        places &= torch.arange(half - 1).reshape(1, -1) % SHORT < SHORT - 1
        gains.append(whole[:, places[0]].mean(1) - nats.reshape(len(ids), -1).mean(1))
        left -= ids.numel()
    found = torch.cat(gains) if gains else torch.zeros(0)
    return Shortened(float(found.mean()), float(found.std() / len(found) ** 0.5)) if len(found) > 3 else None


ENOUGH = 96  # tokens in which a missing mask shows
LEAK = 1e-4  # from here on it is asked where the leak begins


def _leak(layout: Layout, batch: object) -> float | None:
    """A model that predicts the next token must not see it: another last token leaves earlier predictions as they are."""
    pair = _two_ends(batch)
    if pair is None:
        return None
    with slow_path():
        a, b = (logits_of(call(layout.model, each))[:, :-1].float() for each in pair)
    return _change(a, b)


def _two_ends(batch: object) -> tuple[object, object] | None:
    """Two windows, and the same with another last token."""
    ids = token_ids(batch)
    if ids is None or ids.shape[1] < 4 or padding(batch) is not None:
        return None
    ids = ids[:2, :ENOUGH]
    other = ids.clone()
    other[:, -1] = ids[:, -2] if bool((ids[:, -1] != ids[:, -2]).all()) else (ids[:, -1] + 1) % (int(ids.max()) + 1)
    return with_ids(batch, ids), with_ids(batch, other)


def _leaking(layout: Layout, batch: object) -> tuple[int | None, str | None]:
    """The first branch whose output at earlier tokens changes, where its input did not; none: it leaks before layer 0."""
    pair = _two_ends(batch)
    seen: list[list[tuple[int, str, Tensor, Tensor]]] = []
    for each in pair or ():
        parts: list[tuple[int, str, Tensor, Tensor]] = []

        def keep(record: Record, parts: list[tuple[int, str, Tensor, Tensor]] = parts) -> None:
            parts += [(record.index, p.kind, p.before[:, :-1].float(), p.added[:, :-1].float()) for p in record.parts]

        with layout.tracer(keep), slow_path():
            call(layout.model, each)
        seen.append(parts)
    for (index, kind, before, added), (_, _, before_too, added_too) in zip(*seen, strict=True):
        if _change(before, before_too) > LEAK:
            return None, None
        if _change(added, added_too) > LEAK:
            return index, kind
    return None, None


def _change(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / (a - a.mean(-1, keepdim=True)).norm().clamp_min(1e-30))
