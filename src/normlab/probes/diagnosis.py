"""The result: a table of layers, verdicts, and how it was measured; as JSON, CSV, text or one HTML page."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normlab.files import write_json, write_text
from normlab.probes.judge.verdicts import SEVERITIES, Verdict
from normlab.report.terminal import finite


@dataclass
class Diagnosis:
    """What was found in one model. `layers` is a list of dicts, one per layer call; numbers are means over tokens."""

    name: str
    architecture: str
    placement: str
    inferred: bool
    identity_error: float
    embedding: dict[str, Any]
    layers: list[dict[str, Any]]
    summary: dict[str, float]
    verdicts: list[Verdict]
    lengths: list[dict[str, Any]] = field(default_factory=list)
    angular: list[list[float | None]] = field(default_factory=list)
    causal: dict[str, Any] | None = None
    loss: dict[str, Any] | None = None
    theory: dict[str, Any] = field(default_factory=dict)
    mixing: dict[str, Any] | None = None  # the depth-mixing matrix, or why there is none; None: not asked
    how: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def worst(self) -> str | None:
        """The worst severity among the verdicts: "bad", "warn", "note" or None."""
        return min((verdict.severity for verdict in self.verdicts), key=SEVERITIES.index, default=None)

    def verdict(self, id: str) -> Verdict | None:
        return next((verdict for verdict in self.verdicts if verdict.id == id), None)

    def to_dict(self) -> dict[str, Any]:
        values = {key: value for key, value in self.__dict__.items() if key != "verdicts"}
        return finite({**values, "verdicts": [verdict.to_dict() for verdict in self.verdicts]})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Diagnosis:
        """The inverse of `to_dict`, so that a page can be drawn again from diagnosis.json."""
        verdicts = [Verdict(**{**verdict, "layers": tuple(verdict["layers"])}) for verdict in values["verdicts"]]
        return cls(**{**values, "verdicts": verdicts})

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


def table_csv(diagnoses: list[Diagnosis]) -> str:
    rows = [{"model": d.name, **row} for d in diagnoses for row in d.layers]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows([{key: "" if value is None else value for key, value in finite(row).items()} for row in rows])
    return text.getvalue()
