"""The result: a table of layers, verdicts, and how it was measured; as JSON, CSV, text or one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from pydantic import TypeAdapter

from normlab.files import write_json, write_text
from normlab.probes.inputs.losses import LossReading
from normlab.probes.judge.rules import headline
from normlab.probes.judge.verdicts import SEVERITIES, Verdict
from normlab.probes.measure.bounds import Theory
from normlab.probes.measure.readings import Readings
from normlab.probes.measure.skips import SkipReport
from normlab.probes.measure.summary import LengthRow, Summary
from normlab.probes.measure.table import LayerRow, Real, Sparse, StreamRow, flat, plain
from normlab.report.tables import csv_text

SCHEMA = 2  # 1 had the same fields and did not say its number


@dataclass(frozen=True)
class Mixing(Sparse):
    """The depth-mixing matrix (reads x sources), or why there is none."""

    absent: str | None = None
    matrix: tuple[tuple[Real, ...], ...] | None = None
    tokens: int | None = None
    reads: tuple[int, ...] | None = None  # which row each layer begins with
    error: Real | None = None


@dataclass(frozen=True)
class HowMeasured(Sparse):
    """How it was measured."""

    parameters: int = 0
    dtype: str = ""
    device: str = ""
    tokens: int = 0
    batches: int = 0
    window: int | None = None
    width: int = 0
    seed: int = 0
    torch: str = ""
    python: str = ""
    threads: int = 0
    seconds: Real = math.nan
    stages: dict[str, Real] = field(default_factory=dict)
    text: str | None = None
    images: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What was found in one model. `layers` has one row per layer call; numbers are means over tokens."""

    name: str
    architecture: str
    placement: str
    inferred: bool
    identity_error: Real
    embedding: StreamRow
    layers: tuple[LayerRow, ...]
    summary: Summary
    lengths: tuple[LengthRow, ...] = ()
    angular: tuple[tuple[Real, ...], ...] = ()
    causal: SkipReport | None = None
    loss: LossReading | None = None
    theory: Theory = field(default_factory=Theory)
    mixing: Mixing | None = None  # None: not asked
    how: HowMeasured = field(default_factory=HowMeasured)
    notes: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    readings: Readings = field(default_factory=Readings)
    schema: int = SCHEMA
    stack: str = ""  # which half this is, "encoder" or "decoder", where a model has several stacks of layers
    more: tuple[Diagnosis, ...] = ()  # the other stacks

    @property
    def worst(self) -> str | None:
        """The worst severity among the verdicts: "bad", "warn", "note" or None."""
        return min((verdict.severity for verdict in self.verdicts), key=SEVERITIES.index, default=None)

    @property
    def headline(self) -> str:
        """One line: "Healthy", "Look at layer 5: ...", or that it is not trained."""
        return headline(self.verdicts, judged=self.loss is not None)

    @property
    def stacks(self) -> tuple[Diagnosis, ...]:
        """Every stack of layers in the order of the forward pass: of an encoder-decoder, both halves."""
        return (*self.more, self)

    def verdict(self, id: str) -> Verdict | None:
        return next((verdict for verdict in self.verdicts if verdict.id == id), None)

    def to_dict(self) -> dict[str, object]:
        """As JSON holds it. A file that did not say its schema does not say it again."""
        late, halves = ("readings", "schema"), ("stack", "more")
        known = {key: value for key, value in plain(self).items() if key not in halves or value}
        return {key: value for key, value in known.items() if key not in late or self.schema > 1}

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> Diagnosis:
        """The inverse of `to_dict`, so that a page can be drawn again from diagnosis.json."""
        return TypeAdapter(cls).validate_python({"schema": 1, **values})

    def to_json(self, path: str | Path) -> Path:
        return write_json(path, self.to_dict())

    def to_csv(self, path: str | Path) -> Path:
        """The layer table; a cell is empty where nothing was measured."""
        return write_text(path, table_csv([self]))

    def to_html(self, path: str | Path) -> Path:
        from normlab.probes.show.page import build

        return build([self]).write(path)

    def __str__(self) -> str:
        from normlab.probes.show.text import as_text

        return as_text(self)


def table_csv(diagnoses: Sequence[Diagnosis]) -> str:
    """One line per layer; only columns that were measured somewhere."""
    halves = [half for d in diagnoses for half in d.stacks]
    rows = [
        {"model": d.name, **({"stack": d.stack} if d.stack else {}), **flat(row)} for d in halves for row in d.layers
    ]
    measured = list(dict.fromkeys(key for row in rows for key in row))
    known = ["model", "stack", *(each.name for each in fields(LayerRow))]
    return csv_text(rows, [*(name for name in known if name in measured), *(m for m in measured if m not in known)])
