"""From numbers to sentences: what is wrong, how much, what is normal, why it matters, what to try.

A rule (`rules`) looks at a `Findings` and returns a `Verdict` or None. Limits are in one table; what is normal comes
from `data/reference.json`, which `tools/diagnose_reference.py` measures on random and on trained models.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

SEVERITIES = ("bad", "warn", "note")

LIMITS = {
    "dilution": 0.08,  # late contribution below this, and below half of the early one
    "gradient_spread": 10.0,
    "collapse": 0.95,  # mean cosine between tokens, without the three largest coordinates
    "uniform": 0.95,  # normalised entropy
    "sink": 0.3,  # mass on one key, in a quarter of the layers
    "explosion": math.log(1.4),  # factor per layer
    "dead": 1e-3,  # ||f|| / ||h||, and a fiftieth of the other layers'
    "oversized": 8.0,  # times the other layers' median
    "duplicate": 0.99,  # cosine between the weights of neighbours
    "wasted": 0.01,  # of what the model has learnt (chance - loss)
    "homogeneous": 0.95,  # mean cosine between the streams of one token, after the first layers
    "gain": 10.0,  # composite gain of the mixings (doubly stochastic: 1; mHC reports 3000 for plain hyper-connections)
}


@dataclass(frozen=True)
class Verdict:
    """One finding. `value` is the number that was judged, `limit` what it was judged by."""

    id: str
    severity: str
    title: str
    value: float
    limit: float
    layers: tuple[int, ...]
    normal: str
    why: str
    advice: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "layers": list(self.layers)}


@dataclass
class Findings:
    """What the rules may look at."""

    rows: list[dict[str, Any]]
    summary: dict[str, float]
    placement: str
    nonfinite_weights: list[str] = field(default_factory=list)
    duplicates: list[tuple[int, int, float]] = field(default_factory=list)
    causal: dict[str, Any] | None = None


@cache
def reference() -> dict[str, Any]:
    path = Path(__file__).parent / "data" / "reference.json"
    return json.loads(path.read_text()) if path.is_file() else {"models": {}}


def normal(name: str) -> str:
    """`random models 0.12 to 0.31, SmolLM2-135M 0.22, ..., reaction models 0.2 to 0.3` from the reference file."""
    models = reference()["models"]
    parts = [_range("random models", _values(models, name, "random"))]
    parts += [f"{label} {_show(value)}" for label, value in _values(models, name, "trained").items()]
    parts.append(_range("four reaction models", _values(models, name, "held out")))
    return ", ".join(part for part in parts if part) or "no reference"


def _values(models: dict[str, Any], name: str, kind: str) -> dict[str, float]:
    found = {label: model["summary"].get(name) for label, model in models.items() if model["kind"] == kind}
    return {label: value for label, value in found.items() if value is not None and math.isfinite(value)}


def _range(label: str, values: dict[str, float]) -> str:
    return f"{label} {_show(min(values.values()))} to {_show(max(values.values()))}" if values else ""


def _show(value: float) -> str:
    return f"{value:.3g}"


def listed(layers: tuple[int, ...] | list[int]) -> str:
    """`layers 3 to 7 and 9`: runs are shortened."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else " and ".join(map(str, run)) for run in runs]
    text = ", ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "")
    return f"layer{'s' if len(layers) != 1 else ''} {text}"
