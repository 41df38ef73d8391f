"""Nulls: many seeds of one cheap scheme, with the metrics of the claims about length and about the ladder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, curve, number
from normlab.experiments.claims.measured.trained.by_length import (
    at_length,
    over_lengths,
    rows_of,
    seconds_of,
    settings_of,
    trained,
)
from normlab.experiments.claims.measured.trained.four_tasks import TWICE, WORDS
from normlab.experiments.claims.measured.trained.minimal_arms import GAP, NOTHING, STEPS, TRAIN, TV
from normlab.experiments.lengthgen.presets import FOUR_TASKS, MINIMAL_16, NOTHING_BEHIND, TWO_LAYER, Options
from normlab.experiments.lengthgen.result import LengthGeneralization

SEEDS = 24
SHORT = 600


def minimal(bench: Bench) -> LengthGeneralization:
    """The arm without a norm behind attention, as the claims train it."""
    options = {**MINIMAL_16, "steps": STEPS, "schemes": (NOTHING_BEHIND,)}
    return trained(bench.folder.parent / "null-minimal", options, seeds=len(bench.seeds))


def two_layers(bench: Bench, task: str) -> LengthGeneralization:
    longer = {"test_lengths": (16, 32, 64, 256)} if task == "max-retrieval" else {}
    options: Options = {**TWO_LAYER, **FOUR_TASKS[task], **longer, "schemes": ("pre_norm",), "steps": SHORT}
    return trained(_folder(bench, task), options, seeds=len(bench.seeds))


def _folder(bench: Bench, task: str) -> Path:
    return bench.folder.parent / f"null-{task}"


def _minimal_null(name: str, make: Callable[[LengthGeneralization], Measurement]) -> None:
    @measure(name, seeds=SEEDS, seconds=10)
    def null(bench: Bench) -> Findings:
        found = minimal(bench)
        return Findings([make(found)], settings_of(found), seconds=seconds_of(found))


def _at_training_length(name: str, metric: str) -> Callable[[LengthGeneralization], Measurement]:
    return lambda found: number(name, at_length(rows_of(found, NOTHING_BEHIND), metric, TRAIN), NOTHING)


_minimal_null(
    "null-total-variation", lambda found: over_lengths(found, NOTHING_BEHIND, metric="tv", name=TV, arm=NOTHING)
)
_minimal_null(
    "null-gap-between-legal-and-illegal-tokens",
    lambda found: over_lengths(found, NOTHING_BEHIND, metric="gap", name=GAP, arm=NOTHING),
)
for _name, _metric in (
    ("total variation by length", "tv"),
    ("total variation of averaged weights", "tv"),
    ("attention entropy over its maximum", "attention_entropy"),
):
    _minimal_null("null-" + _name.replace(" ", "-"), _at_training_length(_name, _metric))


def _task_nulls(task: str) -> None:
    words = WORDS[task]

    @measure(f"null-total-variation-on-{words.replace(' ', '-')}", seeds=SEEDS, seconds=3)
    def beyond(bench: Bench) -> Findings:
        found = two_layers(bench, task)
        values = at_length(rows_of(found, "pre_norm"), "tv", TWICE[task])
        made = curve(f"{TV} on {words}", [2.0], [[v] for v in values], "pre_norm", axis="times the training length")
        return Findings([made], settings_of(found), seconds=seconds_of(found))

    @measure(f"null-total-variation-by-width-on-{words.replace(' ', '-')}", seeds=SEEDS, seconds=3)
    def by_width(bench: Bench) -> Findings:
        found = two_layers(bench, task)
        values = at_length(rows_of(found, "pre_norm"), "tv", found.config.train_length)
        return Findings([number(f"{TV} by width on {words}", values, "pre_norm")], settings_of(found))


for _task in FOUR_TASKS:
    _task_nulls(_task)


@measure("null-sequence-auc", seeds=SEEDS, seconds=3)
def sequences(bench: Bench) -> Findings:
    found = two_layers(bench, "dyck")
    values = at_length(rows_of(found, "pre_norm"), "auc_sequence", TWICE["dyck"])
    made = curve("sequence AUC", [2.0], [[v] for v in values], "pre_norm", axis="times the training length")
    return Findings([made], settings_of(found), seconds=seconds_of(found))


@measure("null-loss-at-twice-the-training-length-minus-at-the-training-length", seeds=SEEDS, seconds=10)
def text(bench: Bench) -> Findings:
    options: Options = {
        "preset": "two_layer", "task": "text", "train_length": 16, "test_lengths": (16, 32), "dims": (16,), "batch": 8,
        "steps": SHORT, "lrs": (1e-2,), "schemes": ("pre_norm",), "test_count": 512,
    }  # fmt: skip
    found = trained(bench.folder.parent / "null-text", options, seeds=len(bench.seeds))
    rows = rows_of(found, "pre_norm")
    pairs = zip(at_length(rows, "loss", 32), at_length(rows, "loss", 16), strict=True)
    name = "loss at twice the training length minus at the training length"
    return Findings(
        [number(name, [a - b for a, b in pairs], "pre_norm")], settings_of(found), seconds=seconds_of(found)
    )
