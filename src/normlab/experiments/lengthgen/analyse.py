"""From finished runs to rows, their summary over seeds, and how calmly each arm trained."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.lengthgen.result import METRICS, Arm, Calm, RunNote, ScoreRow, Spread, SummaryRow
from normlab.experiments.runs.records import WEIGHTS, FinishedRun
from normlab.tasks import SetComplement
from normlab.theory import complement_theorem as theory


def score_rows(request: LengthgenRequest, runs: Mapping[str, FinishedRun]) -> list[ScoreRow]:
    """One row for each run, weights and length."""
    return [
        ScoreRow(
            Arm.of(run.config), run.seed, weights, length, run.summary.status, run.summary.at_length(weights, length)
        )
        for run in runs.values()
        for weights in WEIGHTS
        for length in request.test_lengths
    ]


def summarise(rows: Sequence[ScoreRow]) -> list[SummaryRow]:
    groups: dict[tuple[Arm, str, int], list[ScoreRow]] = {}
    for row in rows:
        groups.setdefault((row.arm, row.weights, row.length), []).append(row)
    return [
        SummaryRow(
            arm, weights, length, len(members), sum(row.status == "diverged" for row in members), _spreads(members)
        )
        for (arm, weights, length), members in groups.items()
    ]


def _spreads(rows: Sequence[ScoreRow]) -> dict[str, Spread]:
    found = {}
    for name in METRICS:
        values = [value for row in rows if (value := row.metric(name)) is not None]
        if values:
            found[name] = Spread(statistics.median(values), min(values), max(values))
    return found


def calm(request: LengthgenRequest, runs: Mapping[str, FinishedRun]) -> list[Calm]:
    """How calmly each arm trained: gradient norms, the loss's spread at the end, early stops."""
    groups: dict[Arm, list[FinishedRun]] = {}
    for run in runs.values():
        groups.setdefault(Arm.of(run.config), []).append(run)
    found = []
    for arm, members in groups.items():
        logs = [run.training() for run in members]
        norms = [r.grad_norm for log in logs for r in log if r.grad_norm is not None]
        ends = [[r.loss for r in log[-max(len(log) // 4, 2) :] if r.loss is not None] for log in logs]
        spread = [statistics.stdev(losses) for losses in ends if len(losses) > 1]
        found.append(
            Calm(
                arm,
                gradient_norm=statistics.median(norms) if norms else None,
                largest=max(norms) if norms else None,
                loss_deviation=statistics.median(spread) if spread else None,
                stopped_early=sum(log[-1].step < request.steps for log in logs if log),
            )
        )
    return found


def run_notes(runs: Mapping[str, FinishedRun], stacked: set[str]) -> dict[str, RunNote]:
    return {
        name: RunNote(
            s.status,
            s.step,
            s.loss,
            s.seconds,
            s.versions,
            s.commit,
            s.threads,
            "stacked" if name in stacked else "separate",
        )
        for name, run in runs.items()
        if (s := run.summary)
    }


def closed_form(request: LengthgenRequest, summary: Sequence[SummaryRow]) -> list[theory.CalibratedLaws]:
    """The laws with and without a norm, brought to the first scheme's total variation at the training length."""
    task = request.task
    if not isinstance(task, SetComplement) or task.replacement:
        return []
    at = request.train_length if request.train_length in request.test_lengths else min(request.test_lengths)
    here = [r.metrics["tv"].median for r in summary if r.length == at and r.weights == "raw" and "tv" in r.metrics]
    if not here or not 0 < here[0] < at / task.vocab:
        return []
    return theory.calibrated(task.vocab, here[0], at)
