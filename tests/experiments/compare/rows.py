"""Rows of a comparison from made-up losses."""

from dataclasses import fields, replace

from normlab.experiments.compare.result import (
    MARKS,
    Averaged,
    DecayGap,
    LayerMeans,
    RateRow,
    SchemeRow,
    SettingResult,
    SharedSetting,
)
from normlab.stats import Paired, paired

BLANK = dict.fromkeys(f.name for f in fields(SchemeRow))
NONE = LayerMeans(**dict.fromkeys(f.name for f in fields(LayerMeans)))


def row(name, losses, base=None, **changes):
    known = [v for v in losses if v is not None]
    differences = [a - b for a, b in zip(losses, base, strict=True)] if base else [0.0] * len(losses)
    values = {
        "scheme": name, "mean": sum(known) / len(known) if known else None, "losses": dict(enumerate(losses)), "lr": 1e-3,
        "diverged": len(losses) - len(known), "learned": True, "parameters_ratio": 1.0, "averaged": Averaged(None, None),
        "curve": {}, "is_control": False, "rates": [RateRow(lr, 2.0, 1, 0) for lr in (5e-4, 1e-3, 2e-3)],
        "parameters": 10_000,
        "without_tuning_seed": differences[1] if len(differences) > 1 else None,
        "difference": paired([d for d in differences if d is not None]) if known else Paired(0, None),
    }  # fmt: skip
    return SchemeRow(**{**BLANK, **values, **changes})


def setting(*, tokens=10):
    return SharedSetting(depth=4, dim=8, heads=1, task={}, steps=1, tokens=tokens, batch=1, length=1, warmup=0,
                         schedule="wsd", decay_start=0, context_free_loss=None, start="fair", recipe="fair")  # fmt: skip


BASE = [2.0, 2.1, 2.2]


def answered(*rows, baseline="pre_norm", **shape):
    """A setting with these rows, and what it says."""
    common = {
        "parameters": 2_000_000, "flops_per_token": 3e6, "reached_baseline": (1, 3), "law": [],
        "layers": dict.fromkeys(MARKS, NONE),
        "decay_gap": DecayGap(Paired(0, None), {}),
    }  # fmt: skip
    rows = [replace(found, **common) for found in rows]
    said = {found.scheme: f"{found.scheme} was measured." for found in rows}
    return SettingResult(replace(setting(), **shape), baseline, rows, said, ["The answer."])
