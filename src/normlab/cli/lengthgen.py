"""`normlab lengthgen`: schemes, fixes and averages against length, on tasks whose exact answer is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._request import Given, add_command, explicit, parameter, place_options
from normlab.cli._sweeps import deliver, place_of
from normlab.experiments.command import flags, from_texts, make
from normlab.experiments.lengthgen.presets import listing, preset
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.request import Request, assignments, task_of

HELP = """Train schemes on short inputs, score them on long ones. Total variation, legality, raw/EMA/BEMA weights.

A command that was stopped, or killed, goes on where it was when it is given again."""
Named = Annotated[str, typer.Option(help=f"A named experiment, whose settings other options override: {listing()}.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="An option of the task, key=value: vocab=64, number=3, depth=5.")
]
TestSet = Annotated[
    list[str] | None, typer.Option("--test-set", help="Score on another setting of the task: depth=5, key=value.")
]


def register(app: typer.Typer) -> None:
    more = [parameter("experiment", Named, ""), parameter("set_", Set, None), parameter("test_set", TestSet, None)]
    where = place_options(Path("runs/lengthgen"))
    add_command(app, LengthgenRequest, lengthgen, name="lengthgen", help=HELP, more=[*more, *where])


def lengthgen(context: typer.Context, given: Given) -> None:
    place = place_of(given)
    typed, more = explicit(context, given), {"set_": given.set_, "test_set": given.test_set}
    from dataclasses import replace

    from normlab.experiments.protocol import run

    name = given.experiment
    if not name:
        deliver(run(request_of(typed, {}, **more), place), place.out, json=place.quiet)
        return
    chosen = preset(name)
    # A fault in the last part should not wait for the first to train.
    requests = {part: request_of(typed, chosen.options(part), **more) for part in chosen.parts}
    if not place.quiet:
        typer.echo(chosen.question)
    found = {}
    for part, request in requests.items():
        if not place.quiet:
            typer.echo(f"\n{part}")
        found[part] = run(request, replace(place, out=place.out / part))
        if not place.quiet:
            deliver(found[part], place.out / part, json=False)
    if place.quiet:
        from normlab.experiments.protocol import experiment
        from normlab.report import print_json

        for part, result in found.items():
            experiment(result.kind).write(result, place.out / part)
        parts = {part: result.to_dict() for part, result in found.items()}
        print_json({"experiment": name, "question": chosen.question, "parts": parts})


def request_of(
    typed: Mapping[str, object],
    settings: Mapping[str, object],
    *,
    set_: Sequence[str] | None = None,
    test_set: Sequence[str] | None = None,
) -> Request:
    """What was typed, over the settings of a named experiment."""
    fields = {flag.field for flag in flags(LengthgenRequest)}
    own = from_texts(LengthgenRequest, {key: value for key, value in typed.items() if key in fields})
    values: dict[str, Any] = {**settings, **own}
    task = values.get("task", "set_complement")
    ground = task_of(task) if isinstance(task, str) else task
    changes = assignments(set_ or [], source="--set")
    other = assignments(test_set or [], source="--test-set")
    values["task"] = type(ground).from_dict({**ground.to_dict(), **changes})
    if other:
        values["test_task"] = type(ground).from_dict({**values["task"].to_dict(), **other})
    return make(LengthgenRequest, values)
