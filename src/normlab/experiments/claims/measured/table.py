"""The nine-row table, counted from the evidence that is on file."""

from __future__ import annotations

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import number


@measure("summary-table", seeds=1, seconds=1)
def rows_that_hold(bench: Bench) -> Findings:
    from normlab.experiments.claims.book import read_all
    from normlab.experiments.claims.summary import summary

    rows = summary(read_all())
    held = sum(row.holds is True for row in rows)
    notes = [
        f"{row.what}: {'not measured' if row.holds is None else 'holds' if row.holds else 'does not hold'}"
        for row in rows
    ]
    return Findings(
        [number("rows of the table that the numbers bear out", held, exact=True)], {"rows": len(rows)}, notes
    )
