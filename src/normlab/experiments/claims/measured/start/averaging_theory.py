"""Seed 002's theory: what an average over s tokens leaves, in the exact construction and in trained minimal models."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import curve, number
from normlab.experiments.claims.measured.start.training import minimal_model, train
from normlab.experiments.lengthgen.theorem import verify
from normlab.experiments.runs.scoring import score
from normlab.model import Transformer
from normlab.tasks import SetComplement
from normlab.theory import complement_theorem as theory

V, C, G = 16, 10.0, 1.5


def _prefixes(s: int) -> Tensor:
    return SetComplement(vocab=V).sample(64, s, torch.Generator().manual_seed(s)).tokens


def _gap(model: theory.TightSolution, s: int) -> Tensor:
    tokens = _prefixes(s)
    return theory.balance(model.logits(tokens), tokens)[0]


@measure("002-06", seeds=5, seconds=15)
def width_bound(bench: Bench) -> Findings:
    """The rank that balance needs, the construction that reaches it, and trained models of half and of all that width."""
    claims = {c.claim: c.deviation for c in verify(V)}
    rank = next(d for claim, d in claims.items() if "rank v - 1" in claim)
    tight = next(d for claim, d in claims.items() if "balanced at d = v - 1" in claim)
    found = [
        number("rank that balance needs minus (v - 1)", rank, exact=True),
        number("residual of the construction at d = v - 1", tight, exact=True),
    ]
    for arm, dim in (("d = v/2", V // 2), ("d = v - 1", V - 1)):
        models = [minimal_model("pre_norm(final_norm=false)", seed, vocab=V, dim=dim) for seed in bench.seeds]
        for seed, model in zip(bench.seeds, models, strict=True):
            train(model, SetComplement(vocab=V), bench.folder / f"{dim}-{seed}", seed=seed)
        found.append(number("total variation at the training length", [_tv(model, 8) for model in models], arm))
    return Findings(found, {"v": V, "steps": 3000, "training length": 8})


def _tv(model: Transformer, length: int) -> float:
    tv = score(model, SetComplement(vocab=V), [length])[str(length)]["tv"]
    assert isinstance(tv, float)
    return tv


@measure("002-07", seeds=1, seconds=2)
def balance_everywhere(bench: Bench) -> Findings:
    """Attention that is balanced at 1 and 2, at every length; and the counterexample with a skip path."""
    residual = max(balanced_residual(V, seed) for seed in range(5))
    skip = theory.skip_counterexample(V)
    tokens = _prefixes(3)
    broken = float(theory.balance(skip.logits(tokens), tokens)[1].max())
    found = [
        number("imbalance beyond length 2", residual, exact=True),
        number("imbalance at length 3 with a skip path", broken, exact=True),
    ]
    return Findings(found, {"v": V})


def balanced_residual(v: int, seed: int) -> float:
    """Random gaps at length 1 and the attention that length 2 forces: how far longer prefixes are from balance."""
    gaps = torch.rand(v, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 0.5
    worst = 0.0
    for s in range(3, v):
        tokens = SetComplement(vocab=v).sample(32, s, torch.Generator().manual_seed(seed + s)).tokens
        logits = torch.einsum("bs,bsv->bv", theory.balanced_attention(gaps[tokens]), -torch.diag(gaps)[tokens])
        found, imbalance = theory.balance(logits, tokens)
        worst = max(worst, float(torch.maximum(imbalance, (found - theory.combined_gap(gaps[tokens])).abs()).max()))
    return worst


@measure("002-08", seeds=1, seconds=1)
def no_power_of_two(bench: Bench) -> Findings:
    """The gap falls like c/s; the total variation's ratio from one length to the next is no constant."""
    exact = theory.TightSolution(V, C)
    lengths = range(1, V)
    gaps = [float(_gap(exact, s).mean()) for s in lengths]
    tv = [float(theory.total_variation(s, V, gap)) for s, gap in zip(lengths, gaps, strict=True)]
    ratios = [b / a for a, b in pairwise(tv)]
    middle = sum(ratios) / len(ratios)
    far = max(abs(r / middle - 1) for r in ratios)
    found = [
        number("ratio of total variation at s + 1 and s, largest distance from a constant", far, exact=True),
        curve("gap in the exact construction", lengths, [gaps], axis="length", exact=True),
        curve("ratio of total variation at s + 1 and s", list(lengths)[:-1], [ratios], axis="length", exact=True),
    ]
    return Findings(found, {"v": V, "c": C})


@measure("002-17", seeds=1, seconds=1)
def halved(bench: Bench) -> Findings:
    exact = theory.TightSolution(V, C)
    halves = (1, 2, 3, 4, 5, 6, 7)
    ratios = [float(_gap(exact, 2 * s).mean() / _gap(exact, s).mean()) for s in halves]
    return Findings([curve("gap at 2s over gap at s", halves, [ratios], axis="length", exact=True)], {"v": V, "c": C})


@measure("002-23", seeds=1, seconds=1)
def bounded_with_norm(bench: Bench) -> Findings:
    """With a norm on the attention output: the law through the actual matrices, and how small the gap becomes."""
    normed = theory.TightSolution(V, C, gain=G)
    gaps = [float(_gap(normed, s).mean()) for s in range(1, V)]
    law = [float(theory.gap_with_norm(s, V, G)) for s in range(1, V)]
    found = [
        number(
            "residual of the gap law with a norm", max(abs(a - b) for a, b in zip(gaps, law, strict=True)), exact=True
        ),
        number("smallest gap with a norm over its value at s = 1", min(gaps) / gaps[0], exact=True),
        curve("gap with a norm", range(1, V), [gaps], axis="length", exact=True),
    ]
    return Findings(found, {"v": V, "g": G})
