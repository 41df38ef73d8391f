"""The atlas: every scheme at initialisation, measured on real text and laid beside its law.

For each scheme one model of the same shape is built, by one of three starts, and looked at once: what each branch reads, what
it adds, what taking it out changes, which layer gets the gradient, how depth is mixed, what it costs. The definitions are
those of `observe.portrait` and `observe.effect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from normlab.experiments.atlas.request import AtlasRequest
from normlab.model import Transformer, TransformerConfig
from normlab.observe.effect import branch_effects
from normlab.observe.portrait import Portrait, portrait
from normlab.observe.timing import interleave
from normlab.report import progress
from normlab.results import Plain, Result, plain
from normlab.schemes import Frame, SchemeConfig, label, parse_scheme
from normlab.tasks import Batch, Text
from normlab.theory.contributions import ContributionSetting, network

ROUNDING = 1e-5  # of the logits' norm; two schemes that are one function differ by 4e-7 at 96 layers


@dataclass(frozen=True)
class AtlasEntry:
    """One scheme's page of the atlas. Per branch: M values; reads have one more, the head's."""

    scheme: str
    equation: str
    parameters: int
    residual_parameters: int
    loss: float
    stream: list[float]  # rms of h at each read
    law: list[float | None]  # the same if branches of these sizes were independent; see `law_at`
    contribution: list[float | None]  # |v| / |h| of each branch
    effect: list[float]  # of each branch on what the head reads
    influence: list[float]  # 1 - cos(h, next h)
    gradient_share: list[float]  # of each layer, in norm; zeros where no layer has a gradient
    mixing: list[list[float]] | None  # mean over tokens
    step_ratio: float  # time of a training step against the first scheme's
    same_as: str | None  # the first scheme of the atlas that computes the same function, up to rounding


@dataclass(frozen=True)
class Atlas(Result):
    """What was asked, and an entry for each scheme."""

    request: AtlasRequest
    entries: tuple[AtlasEntry, ...]
    kind: str = "atlas"

    def rows(self) -> Plain:
        """The entries alone: what `--json` prints and atlas.json holds."""
        return plain(self.entries)


def measure(request: AtlasRequest, *, quiet: bool = False) -> Atlas:
    """Look at each scheme once; step times are interleaved over the schemes, medians of the rounds."""
    task = Text()
    sample = task.sample(request.batch, request.length, torch.Generator().manual_seed(request.seed))
    models = {name: _build(parse_scheme(name), request, task.vocab_size) for name in request.schemes}
    ratios = _step_ratios(models, sample, rounds=request.rounds, what="" if quiet else "timing")
    entries: list[AtlasEntry] = []
    functions: dict[str, Tensor] = {}
    for name, model in progress(models.items(), what="measuring", quiet=quiet):
        with torch.no_grad():
            logits = model(sample.tokens)
        entry = _look(model, sample, step_ratio=ratios[name], same_as=_same(logits, functions))
        functions[entry.scheme] = logits
        entries.append(entry)
    return Atlas(request, tuple(entries))


def _same(logits: Tensor, others: Mapping[str, Tensor]) -> str | None:
    """The first that has these logits."""
    size = logits.norm()
    return next((name for name, other in others.items() if (logits - other).norm() <= ROUNDING * size), None)


def _build(scheme: SchemeConfig, request: AtlasRequest, vocabulary: int) -> Transformer:
    if request.init == "unit":
        setting = ContributionSetting(depth=request.depth, dim=request.dim, init="paper", seed=request.seed)
        return network(scheme, setting)
    torch.manual_seed(request.seed)
    config = TransformerConfig(
        vocab_size=vocabulary, dim=request.dim, depth=request.depth, heads=request.heads, scheme=scheme,
        start=request.init,
    )  # fmt: skip
    return Transformer(config)


def _look(model: Transformer, sample: Batch, *, step_ratio: float, same_as: str | None) -> AtlasEntry:
    scheme = model.config.scheme
    found, _ = portrait(model, lambda: _loss(model, sample))
    mixing: list[list[float]] | None = None
    if model.scheme.not_linear is None:
        mixing = model.depth_mixing(sample.tokens[:1]).mean((0, 1)).tolist()
    return AtlasEntry(
        scheme=label(scheme),
        equation=scheme.card.equation,
        parameters=model.num_parameters(),
        residual_parameters=sum(p.numel() for p in model.scheme.parameters()),
        loss=found.loss or 0.0,
        stream=found.reads or [],
        law=law_at(found, mixing) or law_of(scheme, model.scheme.frame),
        contribution=found.contributions or [],
        effect=branch_effects(model, sample.tokens[:1]),
        influence=found.turns or [],
        gradient_share=found.gradient_shares or [0.0] * model.config.depth,
        mixing=mixing,
        step_ratio=step_ratio,
        same_as=same_as,
    )


def law_at(found: Portrait, mixing: list[list[float]] | None) -> list[float | None] | None:
    """h_l = sum_i M[l,i] v_i with independent v_i of the sizes that this initialisation gives them; None without an M.

    So the law is that of the start that is looked at: with GPT-2's, small branches hardly move the stream.
    """
    if mixing is None or found.embedding is None or found.added is None:
        return None
    sizes = [found.embedding, *found.added]
    return [sum((m * size) ** 2 for m, size in zip(row, sizes, strict=True)) ** 0.5 for row in mixing]


def law_of(config: SchemeConfig, frame: Frame) -> list[float | None]:
    """The scheme's growth law for unit branches as an rms; the geometric middle where it is a bound."""
    values: list[float | None] = []
    for stated in config.growth(frame):
        if isinstance(stated, tuple):
            stated = (max(stated[0], 1e-12) * stated[1]) ** 0.5
        values.append(None if stated is None else stated**0.5)
    return values


def _loss(model: Transformer, sample: Batch) -> Tensor:
    return F.cross_entropy(model(sample.tokens).flatten(0, 1), sample.targets.flatten())


def _step_ratios(models: dict[str, Transformer], sample: Batch, *, rounds: int, what: str) -> dict[str, float]:
    """The median time of a training step, over the first scheme's."""

    def step(model: Transformer) -> Callable[[], None]:
        def run() -> None:
            model.zero_grad(set_to_none=True)
            _loss(model, sample).backward()

        return run

    times = interleave({name: step(model) for name, model in models.items()}, rounds=rounds, warmup=1, what=what)
    for model in models.values():
        model.zero_grad(set_to_none=True)
    first = median(next(iter(times.values())).wall)
    return {name: median(found.wall) / first for name, found in times.items()}
