"""What `compare`, `stability`, `demo` and `report` share: options, how a sweep is run, and what is left on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from normlab.experiments.sweep import Sweep

Schemes = Annotated[str, typer.Option(help="Names with commas; options in brackets: block_attn_res(blocks=4). Or: all")]
Depth = Annotated[str, typer.Option(help="Layers; several with commas.")]
Dim = Annotated[int, typer.Option(help="Width.")]
Heads = Annotated[int, typer.Option(help="Attention heads.")]
Data = Annotated[str | None, typer.Option(help="A text file, or a task's name (default: the text that ships).")]
Batch = Annotated[int, typer.Option(help="Sequences a step.")]
Length = Annotated[int, typer.Option(help="Tokens a sequence.")]
Workers = Annotated[int, typer.Option(help="Processes at a time; 0: one a core.")]
ExecutorName = Annotated[str, typer.Option("--executor", help="local or ray.")]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster: auto, or host:port.")]
SweepOut = Annotated[Path, typer.Option("--out", help="Folder of the sweep; running again continues it.")]

Shower = Callable[[dict[str, Any], Path], None]


def shape(depth: str, dim: int, heads: int, batch: int, length: int, data: str | None) -> dict[str, Any]:
    """The part of a request that every sweep has."""
    depths = numbers(depth, int, "--depth")
    return {"depths": depths, "dim": dim, "heads": heads, "batch": batch, "length": length, "task": task_of(data)}


def carry_out(
    run: Callable[[Any, Sweep], dict[str, Any]],
    config: Any,
    out: Path,
    *,
    executor: str = "local",
    address: str | None = None,
    workers: int = 0,
    device: str = "cpu",
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the sweep on an executor by name; what is finished in `out` already is only read."""
    from normlab.cli._options import pick_device
    from normlab.experiments.executors import executor as by_name
    from normlab.experiments.sweep import Sweep

    with by_name(executor, workers=workers, address=address, device=pick_device(device)) as cells:
        return run(config, Sweep(out, cells, quiet=quiet))


def write_report(result: dict[str, Any], out: Path) -> Path:
    """The result as a page, as JSON and as tables (Markdown and CSV), in `out`; returns the page."""
    from normlab.experiments import compare_page, compare_tables, stability_page
    from normlab.files import write_json, write_text
    from normlab.report.terminal import finite

    name, page = {"compare": ("comparison", compare_page), "stability": ("stability", stability_page)}[result["kind"]]
    write_json(out / f"{name}.json", finite(result))
    tables = compare_tables.markdown(result) if name == "comparison" else stability_page.markdown(result)
    write_text(out / "tables.md", tables)
    write_text(out / "cells.csv", compare_tables.cells_csv(result))
    return page.build(result).write(out / "report.html")


def deliver(result: dict[str, Any], out: Path, *, show: Shower, json: bool) -> None:
    """Write the report, then say it: to a machine or to a person."""
    from normlab.report import print_json

    page = write_report(result, out)
    if json:
        print_json({**result, "report": str(page)})
    else:
        show(result, page)


def split_schemes(text: str) -> tuple[str, ...]:
    """At commas outside of brackets; `all` is every registered scheme."""
    import re

    if text.strip().lower() == "all":
        from normlab.schemes import SCHEMES

        return tuple(SCHEMES)
    return tuple(part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip())


def numbers(text: str, kind: Any, option: str) -> tuple[Any, ...]:
    from normlab.errors import ConfigError

    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{option} takes {what} with commas between them, but got {text!r}") from None


def task_of(data: str | None) -> Any:
    """A file is text; anything else is a task's name, with its options in brackets: dyck(pairs=2)."""
    from normlab.config import load_yaml
    from normlab.errors import InputError
    from normlab.tasks import TASKS, Text, task

    if data is None:
        return Text()
    if Path(data).is_file():
        found = Text(path=str(Path(data).resolve()))
        found.check(1, 1)  # reads it: a file that is no text is known now
        return found
    name, _, rest = data.rstrip(")").partition("(")
    if name.replace("-", "_") not in TASKS and ("." in data or "/" in data):
        raise InputError(f"the data file {data!r} does not exist; give a text file, or a task: {', '.join(TASKS)}")
    pairs = (item.partition("=") for item in rest.split(",") if item.strip())
    return task(name, **{key.strip(): load_yaml(value) for key, _, value in pairs})
