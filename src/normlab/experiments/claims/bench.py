"""Measuring: functions found by the name of the evidence that they make, and the harness that writes it with its origin.

    @measure("003-07", seeds=1, seconds=5)
    def rate_of_post_norm(bench: Bench) -> Findings:
        return Findings([number("rate", 2.0, exact=True)], settings={"n": 256})

A module in `measured/` is found by itself. One that trains keeps its runs in `bench.folder` and goes on from there.
"""

from __future__ import annotations

import importlib
import pkgutil
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from normlab.errors import ConfigError, UnsupportedError
from normlab.experiments.claims.evidence import Evidence, Measurement, SettingValue


@dataclass(frozen=True)
class Bench:
    """What a measurement is given: its seeds, and a folder for what takes long."""

    seeds: tuple[int, ...]
    folder: Path
    quiet: bool = False


@dataclass(frozen=True)
class Findings:
    """What a measurement returns. `seconds`: what its runs cost, where they were finished before and only read now."""

    measurements: Sequence[Measurement]
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    notes: Sequence[str] = ()
    seconds: float | None = None


Function = Callable[[Bench], Findings]
Kind = Literal["identity or closed form", "random networks", "toy task", "small trained models"]
KINDS: Mapping[str, Kind] = {
    "start.identities": "identity or closed form",
    "start.averaging_theory": "identity or closed form",
    "start": "random networks",
    "sphere.equations": "identity or closed form",
    "sphere.random_starts": "random networks",
    "sphere": "small trained models",
    "networks.start": "random networks",
    "networks": "small trained models",
    "trained.ladder": "small trained models",
    "trained.losses": "small trained models",
    "trained": "toy task",
    "table": "small trained models",
}
"""What the measurements of a module are made on, or of the rest of a folder."""
OTHER_KINDS: Mapping[str, Kind] = {
    "002-06": "toy task",
    "bema-memory": "identity or closed form",
    "language-length": "small trained models",
}
"""Measurements that are of another kind than the rest of their module."""


@dataclass(frozen=True)
class Measure:
    """A function with its cost on one core: `seconds` a seed, `seeds` for the full measurement, `least` to decide at all."""

    name: str
    function: Function
    seeds: int
    seconds: float
    least: int

    @property
    def cost(self) -> float:
        """Seconds of the full measurement."""
        return self.seeds * self.seconds


_MEASURES: dict[str, Measure] = {}


def measure(*names: str, seeds: int, seconds: float, least: int | None = None) -> Callable[[Function], Function]:
    """Register a function for these names of evidence."""

    def take(function: Function) -> Function:
        for name in names:
            if name in _MEASURES and _MEASURES[name].function.__module__ != function.__module__:
                raise ConfigError(f"two functions measure {name}: one of them must go")
            _MEASURES[name] = Measure(name, function, seeds, seconds, least or min(seeds, 2))
        return function

    return take


@cache
def measures() -> Mapping[str, Measure]:
    """Every measurement, by the name of its evidence."""
    from normlab.experiments.claims import measured

    for module in sorted(m.name for m in pkgutil.walk_packages(measured.__path__, f"{measured.__name__}.")):
        importlib.import_module(module)
    return dict(sorted(_MEASURES.items()))


def kind_of(name: str) -> Kind:
    """What a measurement is made on: it says how far its number reaches."""
    if name in OTHER_KINDS:
        return OTHER_KINDS[name]
    path = find_measure(name).function.__module__.rpartition(".measured.")[2]
    return KINDS.get(path) or KINDS[path.partition(".")[0]]


def find_measure(name: str) -> Measure:
    if name not in measures():
        raise UnsupportedError(
            f"nothing measures {name} yet: a function in experiments/claims/measured with @measure does"
        )
    return measures()[name]


def affordable(found: Measure, budget: float | None) -> int:
    """How many seeds the budget (seconds) pays for; 0 where it does not reach the fewest that can decide."""
    if budget is None:
        return found.seeds
    count = min(found.seeds, int(budget / found.seconds)) if found.seconds > 0 else found.seeds
    return count if count >= found.least else 0


def carry_out(found: Measure, *, seeds: int, criteria: Mapping[str, str], folder: Path, quiet: bool = True) -> Evidence:
    """Measure with the first `seeds` seeds; the evidence knows how it came about."""
    import numpy
    import torch

    import normlab
    from normlab.training.record import provenance

    bench = Bench(tuple(range(seeds)), folder / found.name, quiet)
    start = time.perf_counter()
    result = found.function(bench)
    seconds = time.perf_counter() - start if result.seconds is None else result.seconds
    said = provenance(torch.device("cpu"), 0)
    first = min(criteria, default=found.name)
    fewer = f" --budget {seeds * found.seconds:g}s" if seeds < found.seeds else ""
    return Evidence(
        name=found.name, measurements=tuple(result.measurements), seeds=bench.seeds, settings=dict(result.settings),
        criteria=dict(criteria), command=f"normlab claims run {first}{fewer} --record", commit=str(said["commit"] or ""),
        version=normlab.__version__, seconds=seconds, notes=tuple(result.notes),
        versions={"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__},
    )  # fmt: skip
