"""Do trials accuse healthy models by chance? The best of 400 random changes in each of twenty, by two rules.

    python -m tests.probes.clinic.null FOLDER [--max-seconds 300]    a model a file; run again to go on; then the table

The text is that of the training with its line breaks taken for blanks (`--text plays`: as it is): a little unlike it, so
that some changes help a healthy model. The same draws go through the rule of 541c4aa (chosen on the first window, tested
by Student's t on windows that include it, without a correction) and through today's. In a copy of each model one gain is
multiplied by four, on the text as it is: that is to be found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor

from normlab.files import write_json
from normlab.probes.examination import TRIED
from normlab.probes.inputs import batches as parts
from normlab.probes.inputs.losses import Loss, call, pick
from normlab.probes.judge.depth import better_changed, helping_change
from normlab.probes.judge.verdicts import LIMITS, ModelEvidence
from normlab.probes.measure.outputs import OutputReading, read_outputs
from normlab.probes.measure.readings import Readings
from normlab.probes.measure.summary import summarise
from normlab.probes.measure.trials.changes import QUERIES, Trial, asked, branches_of, find, scaled, times, together
from normlab.probes.measure.trials.repair import read_repair
from normlab.probes.measure.trials.run import UndoneReading, halves, run_trials
from normlab.probes.measure.weights.ends import input_embedding
from normlab.probes.measure.weights.gains import layer_norms
from normlab.probes.trace.hooks import Layout, slow_path
from normlab.probes.trace.locate import locate
from normlab.probes.trace.roles import module_path
from normlab.stats import standard_error, t_reach
from normlab.tasks.text import Text

from .backbones import MASK, WINDOW, Backbone, load, run_of
from .runner import Stopwatch

CHANGES = 400
FACTORS = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.4, 2.0, 4.0)
PLANTED = 4.0
KINDS = ("pre", "peri", "res", "moe", "encoder")
STRETCH = 24_000  # bytes: no two models read the same text
Change = Callable[[], AbstractContextManager[None]]


def models() -> list[Backbone]:
    """Twenty healthy models of four placements and a masked one, half of them trained for 300 of 600 steps."""
    runs = [run_of(kind, seed=seed) for kind in KINDS for seed in (0, 1)]
    return [Backbone(run, age) for age in (600, 300) for run in runs]


def text_of(number: int, rows: int, *, joined: bool) -> Tensor:
    """Windows [rows, 128] of a stretch of held-out text of their own; `joined`: with its line breaks taken for blanks."""
    stream = Text().held_out().stream[number * STRETCH : (number + 1) * STRETCH]
    if joined:
        stream = torch.tensor(list(b" ".join(bytes(stream.tolist()).split())))
    return stream[: rows * WINDOW].reshape(rows, WINDOW).long()


def random_changes(layout: Layout, seed: int) -> list[Trial]:
    """Gains, temperatures of attention and of the output, branches, matrices and the embedding, times a factor."""
    sites: list[tuple[str, Callable[[float], Change]]] = []

    def add(what: str, module: torch.nn.Module) -> None:
        sites.append((what, lambda factor: scaled(module, factor)))

    table, head = input_embedding(layout.model), layout.model.get_output_embeddings()
    add("the embedding", table)
    add("the logits", head)
    kinds: dict[str, list[torch.nn.Module]] = {}
    matrices: dict[str, list[torch.nn.Parameter]] = {}
    for index, name, norm in layer_norms(layout):
        add(f"the gain of {name} in layer {index}", norm)
        kinds.setdefault(f"every {name}", []).append(norm)
    for index, (_, layer) in enumerate(layout.layers):
        query = find(layer, QUERIES)
        if query is not None:
            add(f"the queries of layer {index}", asked(layer, query))
            kinds.setdefault("all queries", []).append(asked(layer, query))
        for branch in branches_of(layout, layer):
            module = layer.get_submodule(module_path(branch.added))
            add(f"the {branch.kind} of layer {index}", module)
            kinds.setdefault(f"every {branch.kind}", []).append(module)
        for name, parameter in layer.named_parameters():
            if parameter.dim() > 1:
                what = f"{name} of layer {index}"
                sites.append((what, lambda factor, own=parameter: times([own], factor)))  # type: ignore[misc]
                matrices.setdefault(f"every {name}", []).append(parameter)
    for what, modules in kinds.items():
        sites.append((what, lambda factor, own=modules: together(scaled(m, factor) for m in own)))  # type: ignore[misc]
    for what, parameters in matrices.items():
        sites.append((what, lambda factor, own=parameters: times(own, factor)))  # type: ignore[misc]
    pairs = [(what, change, factor) for what, change in sites for factor in FACTORS]
    drawn = random.Random(seed).sample(pairs, min(CHANGES, len(pairs)))
    return [Trial(f"with {what} times {factor:g}", "weights", (), change(factor)) for what, change, factor in drawn]


# -- the rule of 541c4aa ----------------------------------------------------------------------------------------------
@torch.no_grad()
def rule_before(
    layout: Layout, trials: Sequence[Trial], batches: list[object], loss: Loss, said: OutputReading
) -> str | None:
    """The trial that it would have headed the report with."""

    def measured(batch: object) -> float:
        with slow_path():
            return float(loss(layout.model, batch))

    def changed(trial: Trial, windows: Sequence[object]) -> list[float]:
        with trial.changed():
            return [measured(window) for window in windows]

    first = parts.skip_batches(batches, loss, 512)[0]
    pieces = parts.pieces(parts.some(batches, 2048, loss), loss, count=16)[:16]
    start, before = measured(first), [measured(piece) for piece in pieces]
    values = sorted(((changed(trial, [first])[0], place) for place, trial in enumerate(trials)))
    found: list[tuple[float, str]] = []
    for value, place in values[:6]:
        if value < start - 0.004:
            changes = [new - old for new, old in zip(changed(trials[place], pieces), before, strict=True)]
            mean, error, falls = statistics.fmean(changes), standard_error(changes), sum(c < 0 for c in changes)
            always = len(changes) >= 12 and falls >= len(changes) - 1 and mean < -0.02
            known = statistics.fmean(before) + mean < LIMITS.frequencies * said.frequencies
            if known and (always or mean + t_reach(len(changes)) * error < -0.01):
                found.append((mean, f"{trials[place].what}: {mean:+.3f} (standard error {error:.3f})"))
    return min(found)[1] if found else None


# -- today's rule -----------------------------------------------------------------------------------------------------
def rule_now(
    layout: Layout, trials: Sequence[Trial], batches: list[object], loss: Loss, said: OutputReading
) -> tuple[str | None, str | None]:
    """(what heads the report, what is a note)"""

    def examine() -> UndoneReading:
        pieces = parts.pieces(parts.some(batches, 2048, loss), loss, count=4)
        return UndoneReading(read_outputs(layout, batches, loss), read_repair(layout, pieces, loss))

    chosen, tested = halves(parts.windows(batches, loss, count=TRIED, tokens=2048))
    rows = run_trials(layout, trials, chosen, tested, loss, examine=examine)
    evidence = ModelEvidence((), summarise(()), "", readings=Readings(output=said, trials=rows))
    cause, note = better_changed(evidence), helping_change(evidence)
    return (cause and cause.title), (note and note.title)


@dataclass(frozen=True)
class Result:
    model: str
    before: str | None
    now: str | None
    note: str | None
    planted: str
    found: str | None
    found_note: str | None


def examined(number: int, backbone: Backbone, rows: int, *, joined: bool) -> Result:
    model = load(backbone)
    batches: list[object] = list(text_of(number, rows, joined=joined).split(8))
    loss = pick("auto", model, batches[0], mask_id=MASK if backbone.kind == "encoder" else None)
    assert loss is not None
    layout = locate(model, lambda: call(model, parts.first_rows(batches[0])))
    trials = random_changes(layout, number)
    said = read_outputs(layout, batches, loss)
    assert said is not None
    before, (now, note) = (
        rule_before(layout, trials, batches, loss, said),
        rule_now(layout, trials, batches, loss, said),
    )
    batches = list(text_of(number, rows, joined=False).split(8))
    norms = [item for item in layer_norms(layout) if 0 < item[0] < len(layout.layers) - 1]
    index, name, norm = random.Random(number).choice(norms)
    what = f"the gain of {name} in layer {index}"
    undo = Trial(f"with {what} times {1 / PLANTED:g}", "weights", (index,), scaled(norm, 1 / PLANTED))
    with scaled(norm, PLANTED)():
        sick = read_outputs(layout, batches, loss)
        assert sick is not None
        known = [trial for trial in trials if trial.what != undo.what]
        cause, beside = rule_now(layout, [*known, undo], batches, loss, sick)
    well = read_outputs(layout, batches, loss)
    assert well is not None
    planted = f"{what} times {PLANTED:g} ({sick.loss - well.loss:+.2f} nats)"
    return Result(backbone.name, before, now, note, planted, cause, beside)


def table(results: Sequence[Result]) -> Iterator[str]:
    for item in results:
        yield f"{item.model:22} | before: {item.before or '-'} | now: {item.now or '-'} | note: {item.note or '-'}"
        yield f"{'':22} | planted: {item.planted} | found: {item.found or '-'} | note: {item.found_note or '-'}"
    right = [
        item for item in results if item.found and item.found.startswith(f"with {item.planted.split(' times ')[0]}")
    ]
    yield (
        f"{len(results)} healthy models: accused before {sum(bool(item.before) for item in results)}, now "
        f"{sum(bool(item.now) for item in results)} (notes {sum(bool(item.note) for item in results)}); planted gain "
        f"times {PLANTED:g} named {len(right)}, another change named {sum(bool(item.found) for item in results) - len(right)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--max-seconds", type=float)
    parser.add_argument("--text", choices=("joined", "plays"), default="joined")
    parser.add_argument("--rows", type=int, default=16, help="windows of 128 tokens that are read")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    watch = Stopwatch(chosen.max_seconds)
    for number, backbone in enumerate(models()):
        path = chosen.folder / f"{number:02}.json"
        if not path.exists():
            if watch.over:
                return 3
            write_json(path, examined(number, backbone, chosen.rows, joined=chosen.text == "joined").__dict__)
    for line in table([Result(**json.loads(path.read_text())) for path in sorted(chosen.folder.glob("*.json"))]):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
