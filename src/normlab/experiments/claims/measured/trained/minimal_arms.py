"""Set complement in the minimal model: arms with and without a norm behind attention, kinds of norm, decay, sparsity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from normlab.errors import InputError
from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, curve, number
from normlab.experiments.claims.measured.trained.by_length import (
    at_length,
    over_lengths,
    reached,
    rows_of,
    seconds_of,
    settings_of,
    table,
    trained,
)
from normlab.experiments.lengthgen.presets import MINIMAL_16, NOTHING_BEHIND, SEVEN_ARMS, preset
from normlab.experiments.lengthgen.result import LengthGeneralization
from normlab.theory.complement_theorem import TightSolution, balance

NOTHING = "pre_norm(final_norm=false)"  # as the ledger writes NOTHING_BEHIND
NAMES = {NOTHING_BEHIND: NOTHING}
TV, GAP = "total variation", "gap between legal and illegal tokens"
STEPS = 6000
FILED = STEPS  # of the arms in docs/claims/evidence
TRAIN, LONG = 8, 15


def arms(bench: Bench) -> LengthGeneralization:
    """The seven arms; claims that need them share one folder."""
    folder = bench.folder.parent / f"minimal-arms-{STEPS}"
    return trained(folder, {**MINIMAL_16, "steps": STEPS}, seeds=len(bench.seeds))


def arm_on_file(metric: str, arm: str, *, seeds: int) -> Measurement:
    """An arm of the committed seven, for a claim that sets others beside it: the same seeds, steps and lengths."""
    from normlab.experiments.claims.book import read_all

    found = read_all()["set-complement-arms"]
    if found.settings.get("steps") != FILED or len(found.seeds) < seeds:
        raise InputError("the seven arms on file are of other steps or fewer seeds; measure 002-02 again first")
    return replace(found.find(metric, arm), values=found.find(metric, arm).values[:seeds])


ON_FILE = "The arms without and with RMSNorm are those of docs/claims/evidence/set-complement-arms.json, seed by seed."


@measure("set-complement-arms", seeds=12, seconds=18)
def seven_arms(bench: Bench) -> Findings:
    found = arms(bench)
    measurements = []
    for scheme in SEVEN_ARMS:
        name = NAMES.get(scheme, scheme)
        measurements += [
            over_lengths(found, scheme, metric="tv", name=TV, arm=name),
            over_lengths(found, scheme, metric="gap", name=GAP, arm=name),
        ]
    plain = rows_of(found, NOTHING_BEHIND)
    for arm, length in (("training length", TRAIN), ("twice the length", LONG)):
        measurements.append(number("total variation by length", at_length(plain, "tv", length), arm))
    pre = rows_of(found, "pre_norm")
    bias = [i / g for i, g in zip(at_length(pre, "imbalance", 12), at_length(pre, "gap", 12), strict=True)]
    measurements.append(number("imbalance over gap beyond the training length", bias, "pre_norm"))
    notes = [
        f"Trained to length {TRAIN} of 16 tokens; 'twice the length' is {LONG}, the longest input that exists. Bias is "
        "taken at 12: at 15 one token is legal, and nothing can be biased."
    ]
    return Findings(measurements, settings_of(found), notes, seconds_of(found))


@measure("002-01", seeds=5, seconds=10)
def one_over_s(bench: Bench) -> Findings:
    found = arms(bench)
    gaps = table(rows_of(found, NOTHING_BEHIND), "gap")
    return Findings(
        [
            number("residual of gap times s in the exact construction", _law_residual(16, 3.0), exact=True),
            curve("gap of the trained model", found.config.test_lengths, gaps, NOTHING, axis="length"),
        ],
        settings_of(found),
        seconds=seconds_of(found) / len(SEVEN_ARMS),
    )


def _law_residual(v: int, c: float) -> float:
    """The largest |gap(s) s - c| of the construction, through its matrices."""
    worst = 0.0
    for s in range(1, v):
        tokens = torch.arange(s)[None]
        gap, _ = balance(TightSolution(v, c).logits(tokens), tokens)
        worst = max(worst, abs(float(gap) * s - c))
    return worst


@measure("weight-decay", seeds=24, seconds=36)
def weight_decay(bench: Bench) -> Findings:
    options = {**MINIMAL_16, "steps": STEPS, "schemes": ("pre_norm",)}
    found = {
        decay: trained(bench.folder / f"decay-{decay:g}", {**options, "weight_decay": decay}, seeds=len(bench.seeds))
        for decay in (0.0, 0.01, 0.1)
    }
    name = "attention entropy over its maximum"
    values = [
        number(name, at_length(rows_of(one, "pre_norm"), "attention_entropy", TRAIN), f"weight decay {decay:g}")
        for decay, one in found.items()
    ]
    return Findings(values, settings_of(found[0.0]), ["At the training length."], seconds_of(*found.values()))


@measure("norm-kinds", seeds=12, seconds=26)
def norm_kinds(bench: Bench) -> Findings:
    options = {**MINIMAL_16, "steps": STEPS, "schemes": ("post_norm",)}
    kinds = ("layernorm", "dyt", "l2")
    values = [arm_on_file(TV, NOTHING, seeds=len(bench.seeds))]
    found = {kind: trained(bench.folder / kind, {**options, "norm": kind}, seeds=len(bench.seeds)) for kind in kinds}
    values.append(replace(arm_on_file(TV, "post_norm", seeds=len(bench.seeds)), arm="post_norm, rmsnorm"))
    values += [
        over_lengths(one, "post_norm", metric="tv", name=TV, arm=f"post_norm, {kind}") for kind, one in found.items()
    ]
    return Findings(values, settings_of(found["l2"]), [ON_FILE], seconds_of(*found.values()))


@measure("sparse-attention", seeds=12, seconds=22)
def sparse_attention(bench: Bench) -> Findings:
    options = {**MINIMAL_16, "steps": STEPS, "schemes": (NOTHING_BEHIND, "post_norm"), "fixes": ("sparsemax",)}
    found = trained(bench.folder, options, seeds=len(bench.seeds))
    values = []
    for scheme in (NOTHING_BEHIND, "post_norm"):
        arm = f"{NAMES.get(scheme, scheme)}, sparsemax"
        values.append(over_lengths(found, scheme, metric="tv", name=TV, arm=arm, fix="sparsemax"))
        entropy = over_lengths(
            found, scheme, metric="attention_entropy", name="attention entropy", arm=arm, fix="sparsemax"
        )
        values.append(entropy)
    return Findings(values, settings_of(found), seconds=seconds_of(found))


@measure("million-steps", seeds=5, seconds=550)
def million_steps(bench: Bench) -> Findings:
    """As far as the two arms of the claim have come in the folder beside, which holds seven; hours if they are to end."""
    compared = (NOTHING_BEHIND, "post_norm")
    options = {**preset("million-steps").options("vocab-16"), "schemes": compared}
    found = reached(_beside(bench, "set-complement-1m"), options, seeds=len(bench.seeds))
    values = []
    for scheme in compared:
        values.append(over_lengths(found, scheme, metric="tv", name=TV, arm=NAMES.get(scheme, scheme)))
        averaged = table(rows_of(found, scheme, "ema"), "tv")
        lengths = found.config.test_lengths
        values.append(curve(f"{TV}, EMA", lengths, averaged, NAMES.get(scheme, scheme), axis="length"))
    return Findings(values, settings_of(found), [found.note], 6_400.0 * found.step / found.config.steps)


def _beside(bench: Bench, name: str) -> Path:
    """The long runs lie beside the folder of all claims where there are any, else inside it."""
    outer = bench.folder.parent.parent / name
    return outer if outer.exists() else bench.folder.parent / name
