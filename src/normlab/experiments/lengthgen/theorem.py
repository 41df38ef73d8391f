"""The set complement theorem checked by numbers, and a trained minimal model compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from normlab.errors import ConfigError, InputError, UnsupportedError, unknown
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.records import read_run
from normlab.model import Transformer
from normlab.results import Plain
from normlab.tasks import SetComplement, task
from normlab.theory import complement_theorem as theory
from normlab.theory import precision
from normlab.training import checkpoint
from normlab.training.loop import WEIGHTS
from normlab.training.minimal import attention_rows, entropy, why_not

F64 = torch.float64


@dataclass(frozen=True)
class CheckedClaim:
    """A claim of the theorem with the largest deviation from it that was found."""

    claim: str
    deviation: float

    @property
    def holds(self) -> bool:
        return self.deviation < 1e-10

    def to_plain(self) -> dict[str, Plain]:
        return {"claim": self.claim, "largest deviation": self.deviation, "holds": self.holds}


@dataclass(frozen=True)
class LawRow:
    """A trained model at one length. `plain_law`: gap x s / gap_1, which is 1 without a norm; `norm_law`: gap / the law
    with one, brought to gap_1."""

    length: int
    gap: float
    imbalance: float
    entropy: float | None
    plain_law: float
    norm_law: float

    def to_plain(self) -> dict[str, Plain]:
        return {
            "length": self.length, "gap": self.gap, "imbalance / gap": self.imbalance, "entropy / log s": self.entropy,
            "gap x s / gap_1": self.plain_law, "gap / norm law": self.norm_law,
        }  # fmt: skip


@dataclass(frozen=True)
class Examined:
    """A trained minimal model beside the theorem."""

    scheme: str
    weights: str
    lengths: list[LawRow]
    findings: list[str]


def verify(v: int) -> list[CheckedClaim]:
    """Each claim with the largest deviation found, over every length and 32 prefixes of each."""
    c, gain = 10.0, 1.5
    worst: dict[str, float] = {}

    def note(claim: str, deviation: float) -> None:
        worst[claim] = max(worst.get(claim, 0.0), deviation)

    ground = task("set_complement", vocab=v)
    generator = torch.Generator().manual_seed(0)
    gaps = torch.rand(v, generator=generator, dtype=F64) * 3 + 0.5
    for s in range(1, v):
        tokens = ground.sample(32, s, torch.Generator().manual_seed(s)).tokens
        plain = theory.TightSolution(v, c).logits(tokens)
        found, imbalance = theory.balance(plain, tokens)
        note("construction is balanced at d = v - 1", float(imbalance.max()))
        note("gap is c / s", float((found - theory.gap(s, c)).abs().max()))
        tv = 0.5 * (plain.softmax(-1) - ground.law(tokens)[:, -1]).abs().sum(-1)
        note("TV(s) = s e^(-c/s) / (s e^(-c/s) + v - s)", float((tv - theory.total_variation(s, v, c / s)).abs().max()))
        found, _ = theory.balance(theory.TightSolution(v, c, gain=gain).logits(tokens), tokens)
        note(
            "with a norm: gap is g sqrt(v (v-1) / (s (v-s)))",
            float((found - theory.gap_with_norm(s, v, gain)).abs().max()),
        )
        low = precision.least_gap_with_norm(gain)
        note("with a norm the gap is at least sqrt(2) g at every length", max(low - float(found.min()), 0.0))
        mixed = torch.einsum("bs,bsv->bv", theory.balanced_attention(gaps[tokens]), -torch.diag(gaps)[tokens])
        found, imbalance = theory.balance(mixed, tokens)
        note("balance at 1 and 2 gives every s, gap 1 / sum 1/gap_1",
             float(torch.maximum(imbalance, (found - theory.combined_gap(gaps[tokens])).abs()).max()))  # fmt: skip
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        first = precision.lost_from(c, dtype)
        seen = [precision.resolved(c / s, dtype) for s in (0.99 * first, first)]  # torch rounds to half twice
        note("without one, rounding beside 1 leaves nothing from s = 4c/eps on", float(seen != [True, False]))
    rank = int(torch.linalg.matrix_rank(theory.TightSolution(v, c).logits(torch.arange(v)[:, None])))
    note("length-1 logits have rank v - 1, the least possible", float(abs(rank - (v - 1))))
    if v > 3:
        skip = theory.skip_counterexample(v)
        tokens = ground.sample(32, 3, torch.Generator().manual_seed(3)).tokens
        off = theory.balance(skip.logits(tokens), tokens)[1] - skip.imbalance_at_3()
        note("with a skip path balance is lost at s = 3", float(off.abs().max()))
    return [CheckedClaim(claim, deviation) for claim, deviation in worst.items()]


def examine(folder: Path, weights: str = "raw") -> Examined:
    """Is a trained minimal model's attention constant, is its displacement balanced, does its gap follow a law?"""
    config, model = _load(folder, weights)
    assert isinstance(config.task, SetComplement)
    v = config.task.vocab
    found: list[tuple[int, float, float, float | None]] = []
    with torch.no_grad():
        for s in sorted({1, 2, 3, 4, v // 4, v // 2, 3 * v // 4, v - 1} & set(range(1, v))):
            tokens = config.task.sample(256, s, torch.Generator().manual_seed(s)).tokens
            logits = model(tokens)[:, -1].double()
            gap, imbalance = theory.balance(logits, tokens)
            attention = attention_rows(model, tokens).double()
            spread = (imbalance / gap.abs()).median().item()
            found.append((s, gap.mean().item(), spread, entropy(attention).mean().item() if s > 1 else None))
    first, law = found[0][1], [float(theory.gap_with_norm(s, v, 1.0)) for s, *_ in found]
    lengths = [
        LawRow(s, gap, spread, flatness, gap * s / first, gap / (value / law[0] * first))
        for (s, gap, spread, flatness), value in zip(found, law, strict=True)
    ]
    return Examined(config.model.scheme.name, weights, lengths, _findings(lengths))


def _findings(lengths: Sequence[LawRow]) -> list[str]:
    entropies = [row.entropy for row in lengths if row.entropy is not None]
    imbalance = max(row.imbalance for row in lengths)
    plain = max(abs(row.plain_law - 1) for row in lengths)
    normed = max(abs(row.norm_law - 1) for row in lengths)
    constant = "constant" if min(entropies) > 0.99 else "not constant"
    return [
        f"attention is {constant}: its entropy falls to {min(entropies):.3f} of the largest",
        f"the displacement is {'balanced' if imbalance < 0.1 else 'not balanced'}: spread up to {imbalance:.2f} of the gap",
        f"the gap departs from gap_1/s by up to {plain:.0%} and from the law with a norm by up to {normed:.0%}",
    ]


def _load(folder: Path, weights: str) -> tuple[RunConfig, Transformer]:
    if weights not in WEIGHTS:
        raise ConfigError(unknown("kind of weights", weights, WEIGHTS))
    run = read_run(folder) if folder.is_dir() else None
    if run is None:
        raise InputError(
            f"{str(folder)!r} is not a finished run: it has no summary.json (give one of lengthgen's run folders)"
        )
    config = run.config
    model = config.build_ours()
    reason = why_not(model)
    if reason is not None or not isinstance(config.task, SetComplement) or config.task.replacement:
        raise UnsupportedError(
            "only a minimal model on set complement without replacement compares with the theorem, but here "
            f"{reason or f'the task is {config.task.name!r}'}"
        )
    found = checkpoint.latest(folder / "checkpoint")
    if found is None:
        raise InputError(f"{str(folder)!r} has no checkpoint (the run {run.summary.status}); choose another run")
    tensors = found.group("model" if weights == "raw" else "average")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name if weights == "raw" else f"{weights}/{name}"])
    return config, model.eval()
