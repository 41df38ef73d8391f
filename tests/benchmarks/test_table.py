"""All that was measured, in one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as run
from benchmarks import norms
from benchmarks._table import rows, write


def test_ratios_and_numbers_become_rows() -> None:
    found = {
        "threads": 1,
        "4 x 8": {"ours": {"ratio": 0.5, "ratio_low": 0.4, "ratio_high": 0.6, "milliseconds": 3.0}},
        "eager": [{"candidate": "mhc", "training": 1.25, "training_quartiles": [1.2, 1.3], "training_ms": 9.0}],
        "share": 0.125,
    }
    assert [(row["what"], row["value"], row["quartiles"]) for row in rows("x", found)] == [
        ("threads", "1", ""),
        ("4 x 8, ours", "0.500", "0.400 to 0.600"),
        ("eager, mhc, training", "1.25", "1.200 to 1.300"),
        ("share", "0.125", ""),
    ]


def test_the_table_names_the_machine_and_what_failed(tmp_path: Path) -> None:
    text = write(
        tmp_path / "a" / "t.md", {"norms": {"a": {"ratio": 2.0}}}, {"processor": "P"}, {"model": "E"}
    ).read_text()
    assert "processor: P" in text
    assert "model failed: E" in text
    assert "| norms | a | 2.000 |" in text


def test_one_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(argv: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(norms, "main", broken)
    assert run.main(["norms", "--table", str(tmp_path / "t.md")]) == 1
    assert "benchmark norms failed: RuntimeError: no such thing" in capsys.readouterr().err
    assert "norms failed" in (tmp_path / "t.md").read_text()


def test_rows_of_a_table_stand_under_their_scheme_or_their_size():
    found = list(
        rows("dynamics", {"race": [{"scheme": "pre_norm", "steps": 4}], "growth": [{"n": 128, "seconds": 0.5}]})
    )
    assert [(row["what"], row["value"]) for row in found] == [
        ("race, pre_norm, steps", "4"),
        ("growth, n = 128, seconds", "0.5"),
    ]
