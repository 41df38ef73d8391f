"""The set complement theorem checked by numbers, and a trained minimal model compared with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from normlab.errors import ConfigError, InputError, UnsupportedError, unknown
from normlab.experiments.run import RunConfig, build
from normlab.tasks import SetComplement, task
from normlab.theory import precision
from normlab.theory import set_complement as theory
from normlab.training import checkpoint
from normlab.training.loop import WEIGHTS
from normlab.training.minimal import attention_rows, entropy, why_not

F64 = torch.float64


def verify(v: int) -> list[dict[str, Any]]:
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
        plain = theory.Construction(v, c).logits(tokens)
        found, imbalance = theory.balance(plain, tokens)
        note("construction is balanced at d = v - 1", float(imbalance.max()))
        note("gap is c / s", float((found - theory.gap(s, c)).abs().max()))
        tv = 0.5 * (plain.softmax(-1) - ground.law(tokens)[:, -1]).abs().sum(-1)
        note("TV(s) = s e^(-c/s) / (s e^(-c/s) + v - s)", float((tv - theory.total_variation(s, v, c / s)).abs().max()))
        found, _ = theory.balance(theory.Construction(v, c, gain=gain).logits(tokens), tokens)
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
    rank = int(torch.linalg.matrix_rank(theory.Construction(v, c).logits(torch.arange(v)[:, None])))
    note("length-1 logits have rank v - 1, the least possible", float(abs(rank - (v - 1))))
    if v > 3:
        skip = theory.skip_counterexample(v)
        tokens = ground.sample(32, 3, torch.Generator().manual_seed(3)).tokens
        off = theory.balance(skip.logits(tokens), tokens)[1] - skip.imbalance_at_3()
        note("with a skip path balance is lost at s = 3", float(off.abs().max()))
    return [{"claim": claim, "largest deviation": worst[claim], "holds": worst[claim] < 1e-10} for claim in worst]


def examine(folder: Path, weights: str = "raw") -> dict[str, Any]:
    """Is a trained minimal model's attention constant, is its displacement balanced, does its gap follow a law?"""
    config, model = _load(folder, weights)
    assert isinstance(config.task, SetComplement)
    v = config.task.vocab
    lengths: list[dict[str, Any]] = []
    with torch.no_grad():
        for s in sorted({1, 2, 3, 4, v // 4, v // 2, 3 * v // 4, v - 1} & set(range(1, v))):
            tokens = config.task.sample(256, s, torch.Generator().manual_seed(s)).tokens
            logits = model(tokens)[:, -1].double()
            gap, imbalance = theory.balance(logits, tokens)
            attention = attention_rows(model, tokens).double()
            lengths.append(
                {
                    "length": s,
                    "gap": gap.mean().item(),
                    "imbalance / gap": (imbalance / gap.abs()).median().item(),
                    "entropy / log s": entropy(attention).mean().item() if s > 1 else None,
                    "gap x s / gap_1": None,
                    "gap / norm law": None,
                }
            )
    first, law = lengths[0]["gap"], [float(theory.gap_with_norm(r["length"], v, 1.0)) for r in lengths]
    for row, value in zip(lengths, law, strict=True):
        row["gap x s / gap_1"] = row["gap"] * row["length"] / first
        row["gap / norm law"] = row["gap"] / (value / law[0] * first)
    return {"scheme": config.model.scheme.name, "weights": weights, "lengths": lengths, "findings": _findings(lengths)}


def _findings(lengths: list[dict[str, Any]]) -> list[str]:
    entropies = [row["entropy / log s"] for row in lengths if row["entropy / log s"] is not None]
    imbalance = max(row["imbalance / gap"] for row in lengths)
    plain = max(abs(row["gap x s / gap_1"] - 1) for row in lengths)
    normed = max(abs(row["gap / norm law"] - 1) for row in lengths)
    constant = "constant" if min(entropies) > 0.99 else "not constant"
    return [
        f"attention is {constant}: its entropy falls to {min(entropies):.3f} of the largest",
        f"the displacement is {'balanced' if imbalance < 0.1 else 'not balanced'}: spread up to {imbalance:.2f} of the gap",
        f"the gap departs from gap_1/s by up to {plain:.0%} and from the law with a norm by up to {normed:.0%}",
    ]


def _load(folder: Path, weights: str) -> tuple[RunConfig, Any]:
    if weights not in WEIGHTS:
        raise ConfigError(unknown("kind of weights", weights, WEIGHTS))
    if not (folder / "summary.json").exists():
        raise InputError(
            f"{str(folder)!r} is not a finished run: it has no summary.json (give one of lengthgen's run folders)"
        )
    config = RunConfig.from_file(folder / "config.yaml")
    model = build(config)
    reason = why_not(model)
    if reason is not None or not isinstance(config.task, SetComplement) or config.task.replacement:
        raise UnsupportedError(
            "only a minimal model on set complement without replacement compares with the theorem, but here "
            f"{reason or f'the task is {config.task.name!r}'}"
        )
    found = checkpoint.latest(folder / "checkpoint")
    if found is None:
        status = json.loads((folder / "summary.json").read_text())["status"]
        raise InputError(f"{str(folder)!r} has no checkpoint (the run {status}); choose another run")
    tensors = found.group("model" if weights == "raw" else "average")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name if weights == "raw" else f"{weights}/{name}"])
    return config, model.eval()
