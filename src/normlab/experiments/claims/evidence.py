"""What was measured for a claim, as a type and as a small file: named numbers per arm and per seed, and how they came about.

A file is read only by the code that knows its schema; the criterion that was in force when it was measured is kept in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from normlab.errors import InputError, unknown
from normlab.files import write_json
from normlab.results import Plain
from normlab.store import damaged, read_object

SCHEMA = 1
REMEDY = "measure it again with `normlab claims run`"
SettingValue = str | int | float | bool


@dataclass(frozen=True)
class Measurement:
    """One metric of one arm: `values` has a row for each seed and a column for each place `at` which it was taken.

    A number without a place has one column and no `at`. `exact`: nothing random enters (a closed form, an integrated
    equation), so that one row is the whole truth; otherwise one row has no interval and decides nothing.
    """

    metric: str
    values: tuple[tuple[float, ...], ...]
    arm: str = ""
    at: tuple[float, ...] = ()
    axis: str = ""
    exact: bool = False

    def __post_init__(self) -> None:
        width = len(self.at) or 1
        if not self.values or any(len(row) != width for row in self.values):
            raise InputError(f"{self.name}: every seed needs {width} values, one for each place; got {self.values!r}")
        if any(not isinstance(v, (int, float)) for row in self.values for v in row):
            raise InputError(f"{self.name}: every value must be a number")

    @property
    def name(self) -> str:
        return f"{self.metric} of {self.arm}" if self.arm else self.metric

    def column(self, at: float | None = None) -> list[float]:
        """A number for each seed: at this place, or the only one."""
        if at is None:
            if len(self.at) > 1:
                raise InputError(f"{self.name} is a curve over {self.axis}; say at which of {list(self.at)}")
            return [row[0] for row in self.values]
        if at not in self.at:
            raise InputError(f"{self.name} was not taken at {self.axis} {at:g}; only at {list(self.at)}")
        return [row[self.at.index(at)] for row in self.values]


def number(metric: str, values: float | Sequence[float], arm: str = "", *, exact: bool = False) -> Measurement:
    """One number for each seed."""
    rows = [values] if isinstance(values, (int, float)) else values
    return Measurement(metric, tuple((float(v),) for v in rows), arm, exact=exact)


def curve(
    metric: str, at: Sequence[float], rows: Sequence[Sequence[float]], arm: str = "", *, axis: str, exact: bool = False
) -> Measurement:
    """A row for each seed over the places `at`."""
    values = tuple(tuple(float(v) for v in row) for row in rows)
    return Measurement(metric, values, arm, tuple(float(x) for x in at), axis, exact)


@dataclass(frozen=True)
class Evidence:
    """A measurement of a claim (or of several that share it), with all that is needed to make it again."""

    name: str
    measurements: tuple[Measurement, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    criteria: Mapping[str, str] = field(default_factory=dict)
    """For each claim that this decides, its criterion in words when it was measured."""
    command: str = ""
    commit: str = ""
    version: str = ""
    """Of normlab."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of what it stands on: Python, torch, numpy."""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    looks: int = 1
    """How often these seeds were looked at: seeds that were added because fewer had left it open make it one more."""

    def find(self, metric: str, arm: str = "") -> Measurement:
        for found in self.measurements:
            if found.metric == metric and found.arm == arm:
                return found
        known = [m.name for m in self.measurements]
        wanted = f"{metric} of {arm}" if arm else metric
        raise InputError(f"the evidence {self.name}: {unknown('measurement', wanted, known)}; {REMEDY}")

    @property
    def seconds_per_seed(self) -> float:
        return self.seconds / max(1, len(self.seeds))

    @property
    def twice(self) -> str:
        """What training twice as long takes, where more seeds would not help."""
        return f"twice the training takes {on_one_core(2 * self.seconds)}"

    def to_plain(self) -> dict[str, object]:
        return {
            "schema": SCHEMA, "name": self.name, "command": self.command, "commit": self.commit, "version": self.version,
            "versions": dict(self.versions), "seeds": list(self.seeds), "settings": dict(self.settings),
            "criteria": dict(self.criteria), "seconds": round(self.seconds, 2), "notes": list(self.notes),
            **({"looks": self.looks} if self.looks > 1 else {}), "measurements": [_plain(m) for m in self.measurements],
        }  # fmt: skip

    def after(self, before: Evidence | None) -> Evidence:
        """This evidence, where `before` was on file: the same experiment with more seeds is one more look.

        Fewer of the seeds that were seen are no fresh ones.
        """
        if before is None or before.settings != self.settings or not set(before.seeds) & set(self.seeds):
            return self
        return replace(self, looks=before.looks + bool(set(self.seeds) - set(before.seeds)))

    def write(self, folder: str | Path) -> Path:
        return write_json(Path(folder) / f"{self.name}.json", self.to_plain())


def on_one_core(seconds: float) -> str:
    hours = seconds / 3600
    span = f"{hours:.1f} hours" if hours >= 1 else f"{max(1, round(60 * hours))} minutes"
    return f"about {span} on one core"


def _plain(m: Measurement) -> dict[str, Plain]:
    shown: dict[str, Plain] = {
        "metric": m.metric,
        "arm": m.arm,
        "values": [[_short(v) for v in row] for row in m.values],
    }
    if m.at:
        shown |= {"at": list(m.at), "axis": m.axis}
    return {**shown, "exact": True} if m.exact else shown


def _short(value: float) -> float | None:
    """Nine digits: more than any criterion asks for, and files stay small. What is no number becomes null."""
    return float(f"{value:.9g}") if math.isfinite(value) else None


def read_evidence(path: str | Path) -> Evidence:
    """The evidence in a file. One of another schema is refused with a sentence."""
    keys = {"schema": int, "name": str, "measurements": list, "seeds": list, "settings": dict, "criteria": dict}
    body = read_object(path, remedy=REMEDY, keys=keys)
    if body["schema"] != SCHEMA:
        raise InputError(
            f"the evidence {str(path)!r} is from another version (schema {body['schema']}, and this normlab reads "
            f"{SCHEMA}); {REMEDY}"
        )
    try:
        return Evidence(
            name=body["name"], seeds=tuple(body["seeds"]), settings=body["settings"], criteria=body["criteria"],
            measurements=tuple(_measurement(m) for m in body["measurements"]), command=body.get("command", ""),
            commit=body.get("commit", ""), version=body.get("version", ""), versions=body.get("versions", {}),
            seconds=float(body.get("seconds", 0.0)), notes=tuple(body.get("notes", ())),
            looks=max(1, int(body.get("looks", 1))),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged(path, f"a measurement cannot be read ({error})", REMEDY) from None


def _measurement(m: Mapping[str, object]) -> Measurement:
    rows = m["values"]
    at = m.get("at", ())
    assert isinstance(rows, list)
    assert isinstance(at, (list, tuple))
    return Measurement(
        str(m["metric"]), tuple(tuple(math.nan if v is None else float(v) for v in row) for row in rows),
        str(m.get("arm", "")), tuple(float(x) for x in at), str(m.get("axis", "")), bool(m.get("exact", False)),
    )  # fmt: skip
