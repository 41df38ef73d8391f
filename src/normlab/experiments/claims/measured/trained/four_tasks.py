"""The benchmark's four tasks in two layers: placements, widths, whole sequences, text."""

from __future__ import annotations

from collections.abc import Sequence

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, SettingValue, curve, number
from normlab.experiments.claims.measured.trained.by_length import (
    Reached,
    at_length,
    over_lengths,
    reached,
    rows_of,
    seconds_of,
    settings_of,
    trained,
)
from normlab.experiments.claims.measured.trained.minimal_arms import NOTHING, ON_FILE, TV, arm_on_file
from normlab.experiments.claims.measured.trained.minimal_arms import STEPS as MINIMAL_STEPS
from normlab.experiments.lengthgen.presets import FOUR_TASKS, TWO_LAYER, Options
from normlab.experiments.lengthgen.result import LengthGeneralization

SCHEMES = ("pre_norm", "post_norm", "peri_norm", "peri_init_norm")
WORDS = {"set-complement": "set complement", "max-retrieval": "maximum retrieval", "dyck": "dyck", "tomita": "tomita"}
TWICE = {"set-complement": 11, "max-retrieval": 32, "dyck": 32, "tomita": 32}
"""Twice the training length; for set complement 11, the longest that there is, after 6."""
STEPS, WIDTH_STEPS, TEXT_STEPS = 10_000, 3000, 2000
SEEDS, COST = 8, 3600.0  # seconds of all four tasks, four schemes and eight seeds on one core, about
ON_THE_WAY = (2000, 4000, 7000)


def options_of(task: str) -> Options:
    """Two layers, 10,000 steps, scored on the way."""
    found = {**TWO_LAYER, **FOUR_TASKS[task], "schemes": SCHEMES, "positions": ("nope",), "steps": STEPS}
    longer = {"test_lengths": (16, 32, 64, 256)} if task == "max-retrieval" else {}
    return {**found, **longer, "evaluate_at": ON_THE_WAY}


def task_runs(bench: Bench, task: str) -> Reached:
    """Shared by the claims that need this task: as far as the runs have come."""
    return reached(bench.folder.parent / "benchmark-tasks" / task, options_of(task), seeds=SEEDS)


def _twice(found: Reached, task: str, scheme: str, *, metric: str, name: str) -> Measurement:
    values = at_length(rows_of(found, scheme), metric, TWICE[task])
    return curve(name, [2.0], [[v] for v in values], scheme, axis="times the training length")


@measure("benchmark-tasks", seeds=SEEDS, seconds=COST / SEEDS)
def every_task(bench: Bench) -> Findings:
    found = {task: task_runs(bench, task) for task in FOUR_TASKS}
    values = [
        _twice(one, task, scheme, metric="tv", name=f"{TV} on {WORDS[task]}")
        for task, one in found.items()
        for scheme in SCHEMES
    ]
    notes = [f"Tested at {', '.join(f'{TWICE[t]} ({WORDS[t]})' for t in FOUR_TASKS)}; no positions."]
    notes += [f"{WORDS[task]}: {one.note}" for task, one in found.items()]
    return Findings(values, settings_of(found["dyck"]), notes, COST * min(one.step for one in found.values()) / STEPS)


@measure("peri-norm", seeds=5, seconds=100)
def peri(bench: Bench) -> Findings:
    """Both parts have their own seeds. The minimal model's arms are those on file, of the same seeds."""
    dyck = task_runs(bench, "dyck")
    values = [arm_on_file(TV, arm, seeds=len(bench.seeds)) for arm in (NOTHING, "post_norm", "peri_norm")]
    values += [_twice(dyck, "dyck", s, metric="tv", name=f"{TV} on dyck") for s in ("pre_norm", "peri_norm")]
    settings: dict[str, SettingValue] = {"steps": MINIMAL_STEPS, "steps on dyck": dyck.step}
    return Findings(values, settings, [f"dyck: {dyck.note}", ON_FILE], COST / len(FOUR_TASKS) * dyck.step / STEPS)


@measure("sequence-auc", seeds=SEEDS, seconds=COST / SEEDS / 4)
def whole_sequences(bench: Bench) -> Findings:
    found = task_runs(bench, "dyck")
    values = [_twice(found, "dyck", s, metric="auc_sequence", name="sequence AUC") for s in SCHEMES]
    values += [over_lengths(found, s, metric="auc_sequence", name="sequence AUC by length") for s in SCHEMES]
    notes = [
        "Dyck(2, 3): members against the same strings with one illegal token, ranked by log-likelihood.",
        found.note,
    ]
    return Findings(values, settings_of(found), notes, COST / len(FOUR_TASKS) * found.step / STEPS)


@measure("widths", seeds=20, seconds=35)
def widths(bench: Bench) -> Findings:
    """Half of what the bound asks for against all of it, on each task in two layers."""
    values: list[Measurement] = []
    runs: list[LengthGeneralization] = []
    for task, row in FOUR_TASKS.items():
        size = _vocabulary(row)
        for arm, dim in (("d = v/2", size // 2), ("d = v - 1", size - 1)):
            found = _narrow(bench, task, dim)
            runs.append(found)
            length = found.config.train_length
            values.append(
                number(f"{TV} by width on {WORDS[task]}", at_length(rows_of(found, "pre_norm"), "tv", length), arm)
            )
    notes = ["At the training length; four heads of width 4 at every d."]
    return Findings(values, settings_of(runs[0]), notes, seconds_of(*runs))


def _narrow(bench: Bench, task: str, dim: int) -> LengthGeneralization:
    options = {
        **TWO_LAYER,
        **FOUR_TASKS[task],
        "schemes": ("pre_norm",),
        "steps": WIDTH_STEPS,
        "dims": (dim,),
        "head_dims": (4,),
    }
    return trained(bench.folder / f"{task}-d{dim}", options, seeds=len(bench.seeds))


def _vocabulary(row: Options) -> int:
    from normlab.experiments.request import task_of

    return task_of(str(row["task"])).vocab_size


@measure("language-length", seeds=24, seconds=30)
def natural_text(bench: Bench) -> Findings:
    schemes: Sequence[str] = ("pre_norm", "post_norm")
    options: Options = {
        "preset": "two_layer", "task": "text", "train_length": 32, "test_lengths": (32, 64), "dims": (32,), "batch": 16,
        "steps": TEXT_STEPS, "lrs": (3e-3,), "positions": ("nope",), "schemes": tuple(schemes), "test_count": 512,
    }  # fmt: skip
    found = trained(bench.folder, options, seeds=len(bench.seeds))
    name = "loss at twice the training length minus at the training length"
    values = []
    for scheme in schemes:
        rows = rows_of(found, scheme)
        pairs = zip(at_length(rows, "loss", 64), at_length(rows, "loss", 32), strict=True)
        values.append(number(name, [long - short for long, short in pairs], scheme))
        values.append(number("loss at the training length", at_length(rows, "loss", 32), scheme))
    tokens = TEXT_STEPS * 16 * 32
    notes = [f"{tokens:,} bytes of the plays that ship, two layers of width 32, no positions."]
    return Findings(values, {**settings_of(found), "tokens": tokens}, notes, seconds_of(found))
