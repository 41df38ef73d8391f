"""Claims that compare held-out losses, each by a `compare` of its own at the shape of the small ladder; and their null."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import SettingValue, curve, number
from normlab.experiments.claims.measured.trained.ladder import (
    DECAY,
    LOSS,
    SHARES,
    at_step,
    per_parameter,
    shared,
    small,
    through_decay,
)
from normlab.experiments.compare.experiment import EXPERIMENT
from normlab.experiments.compare.presets import SMALL_SCHEMES, preset
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.compare.result import Comparison, SchemeRow, SettingResult
from normlab.experiments.executors.here import HereExecutor
from normlab.experiments.sweep import Sweep

DEEP, DEEP_TOKENS = 24, 2_048_000  # 2,000 steps
LADDER = (
    "Runs of the small ladder (`normlab compare --preset ladder-small`, or ladder-quarter where those are not there)."
)


def compared(folder: Path, *, schemes: Sequence[str], seeds: int, **options: object) -> Comparison:
    """The small ladder with other schemes or sizes, brought to its end in this folder."""
    values = {**preset("ladder-small"), "schemes": tuple(schemes), "seeds": seeds, "baseline": schemes[0], **options}
    request = CompareRequest(**values)  # type: ignore[arg-type]
    return EXPERIMENT.carry_out(request, Sweep(folder, HereExecutor(), quiet=True))


def _row(setting: SettingResult, scheme: str) -> SchemeRow:
    return next(row for row in setting.schemes if row.scheme == scheme)


def _ends(setting: SettingResult, scheme: str) -> list[float]:
    """The loss of every seed that all schemes of the setting have finished."""
    losses = _row(setting, scheme).losses
    return [losses[seed] or float("nan") for seed in shared(setting)]


def _settings(setting: SettingResult) -> dict[str, SettingValue]:
    shape = setting.setting
    return {
        **per_parameter(setting), "depth": shape.depth, "dim": shape.dim, "tokens": shape.tokens, "recipe": shape.recipe
    }  # fmt: skip


def _seconds(*found: Comparison) -> float:
    return sum(run.seconds for one in found for run in one.cells)


@measure("res-norm", seeds=5, seconds=100)
def res_norm(bench: Bench) -> Findings:
    setting, _, found = small(bench, SMALL_SCHEMES)
    values = [
        curve(LOSS, [1.0], [[v] for v in _ends(setting, scheme)], scheme, axis="share of the training")
        for scheme in ("pre_norm", "res_norm")
    ]
    return Findings(values, _settings(setting), [LADDER], _seconds(found) * 2 / len(setting.schemes))


@measure("inner-placements", seeds=5, seconds=500)
def inner_placements(bench: Bench) -> Findings:
    """Each placement alone and inside Attention Residuals, all with the recipe of the placement's authors."""
    inner = ("pre_norm", "peri_norm", "res_norm")
    names = {name: f"block_attn_res(inner={name})" for name in inner}
    labels = {**names, "pre_norm": "block_attn_res"}  # its default
    request = CompareRequest(**{**preset("ladder-inner"), "seeds": len(bench.seeds)})  # type: ignore[arg-type]
    found = EXPERIMENT.carry_out(request, Sweep(bench.folder, HereExecutor(), quiet=True))
    (setting,) = found.settings
    values = [number(LOSS, _ends(setting, name), name) for name in inner]
    values += [number(LOSS, _ends(setting, labels[name]), names[name]) for name in inner]
    rates = ", ".join(f"{row.scheme} {row.lr:g}" for row in setting.schemes)
    return Findings(values, _settings(setting), [f"Best rates: {rates}."], _seconds(found))


@measure("depths", seeds=5, seconds=300)
def depths(bench: Bench) -> Findings:
    """The same width and the same tokens for all; each depth has its own rate."""
    found = compared(bench.folder, schemes=("pre_norm",), seeds=len(bench.seeds), depths=(6, 12, 24))
    by_depth = {setting.setting.depth: _ends(setting, "pre_norm") for setting in found.settings}
    values = [number("held-out loss by depth", ends, f"pre_norm, {depth} layers") for depth, ends in by_depth.items()]
    for less, more in ((6, 12), (12, 24)):
        gains = [a - b for a, b in zip(by_depth[less], by_depth[more], strict=True)]
        values.append(number("gain of doubling the depth", gains, f"pre_norm, {less} to {more} layers"))
    deepest = max(found.settings, key=lambda setting: setting.setting.depth)
    return Findings(values, {**_settings(deepest), "depths": "6, 12, 24"}, seconds=_seconds(found))


@measure("deep-post", seeds=5, seconds=4600)
def deep_post(bench: Bench) -> Findings:
    """Each scheme has its own rate, out of four."""
    schemes = ("pre_norm", "post_norm", "deep_norm")
    options = {"depths": (DEEP,), "tokens": DEEP_TOKENS, "lrs": (1e-4, 3e-4, 1e-3, 3e-3), "warmup": 0.25}
    found = compared(bench.folder, schemes=schemes, seeds=len(bench.seeds), **options)
    (setting,) = found.settings
    values = [number(LOSS, _ends(setting, scheme), scheme) for scheme in ("post_norm", "deep_norm")]
    name = "held-out loss of deep models"
    values += [number(name, _ends(setting, s), f"{s}, deep") for s in ("post_norm", "pre_norm")]
    return Findings(values, _settings(setting), ["A quarter of the steps is warm-up."], _seconds(found))


def _null(bench: Bench) -> tuple[SettingResult, Comparison]:
    """Many seeds of Pre-Norm, two layers of width 16: cheap."""
    sizes = {"depths": (2,), "dim": 16, "batch": 8, "length": 32, "tokens": 51_200, "lrs": (3e-3,), "tune_seeds": 1,
             "tune_share": 1.0}  # fmt: skip
    found = compared(bench.folder.parent / "null-loss", schemes=("pre_norm",), seeds=len(bench.seeds), **sizes)
    return found.settings[0], found


@measure("null-held-out-loss", seeds=24, seconds=5)
def null_loss(bench: Bench) -> Findings:
    setting, found = _null(bench)
    row, steps = setting.schemes[0], setting.setting.steps
    rows = [[at_step(row, seed, round(share * steps)) for share in SHARES] for seed in shared(setting)]
    made = curve(LOSS, SHARES, rows, "pre_norm", axis="share of the training")
    return Findings([made], _settings(setting), seconds=_seconds(found))


@measure("null-change-of-the-loss-through-the-decay", seeds=24, seconds=5)
def null_decay(bench: Bench) -> Findings:
    setting, found = _null(bench)
    values = [through_decay(setting.schemes[0], seed) for seed in shared(setting)]
    return Findings([number(DECAY, values, "pre_norm")], _settings(setting), seconds=_seconds(found))


@measure("null-gain-of-doubling-the-depth", seeds=48, seconds=5)
def null_gain(bench: Bench) -> Findings:
    """A gain is a difference of two runs: here of two seeds, each used once."""
    setting, found = _null(bench)
    ends = _ends(setting, "pre_norm")
    half = len(ends) // 2
    gains = [a - b for a, b in zip(ends[:half], ends[half:], strict=False)]
    name = "gain of doubling the depth"
    return Findings([number(name, gains, "pre_norm")], _settings(setting), seconds=_seconds(found))


@measure("null-held-out-loss-of-deep-models", seeds=24, seconds=5)
def null_deep(bench: Bench) -> Findings:
    setting, found = _null(bench)
    name = "held-out loss of deep models"
    return Findings([number(name, _ends(setting, "pre_norm"), "pre_norm")], _settings(setting), seconds=_seconds(found))
