"""`normlab compare`: which scheme should I use?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._options import Json

Schemes = Annotated[str, typer.Option(help="Names with commas; options in brackets: block_attn_res(blocks=4). Or: all")]
Depth = Annotated[str, typer.Option(help="Layers; several with commas.")]
Data = Annotated[str | None, typer.Option(help="A text file, or a task's name (default: the text that ships).")]
Lrs = Annotated[str, typer.Option(help="Learning rates to tune over, with commas.")]
Workers = Annotated[int, typer.Option(help="Processes at a time; 0: one a core.")]
ExecutorName = Annotated[str, typer.Option("--executor", help="local or ray.")]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster: auto, or host:port.")]


# Columns that only the page has room for.
PAGE_ONLY = ("lost at lr x2", "steps to baseline", "peak MB", "parameters", "MFLOP/token", "seeds")


def register(app: typer.Typer) -> None:
    @app.command()
    def compare(
        schemes: Schemes = "post_norm,pre_norm,peri_norm,ln_scaling,block_attn_res",
        depth: Depth = "12",
        dim: Annotated[int, typer.Option(help="Width.")] = 64,
        heads: Annotated[int, typer.Option(help="Attention heads.")] = 4,
        data: Data = None,
        budget: Annotated[
            str | None, typer.Option(help="Time of the whole comparison: 90s, 10m, 2h (default: 10m).")
        ] = None,
        tokens: Annotated[int | None, typer.Option(help="Training tokens of each run, instead of a time.")] = None,
        seeds: Annotated[int, typer.Option(help="Seeds of each scheme at its best rate.")] = 2,
        lrs: Lrs = "1e-3,3e-3,1e-2",
        batch: Annotated[int, typer.Option(help="Sequences a step.")] = 16,
        length: Annotated[int, typer.Option(help="Tokens a sequence.")] = 64,
        baseline: Annotated[str | None, typer.Option(help="What the others are compared with.")] = None,
        executor: ExecutorName = "local",
        address: Address = None,
        workers: Workers = 0,
        out: Annotated[Path, typer.Option(help="Folder of the sweep; running again continues it.")] = Path(
            "runs/compare"
        ),
        json: Json = False,
    ) -> None:
        """Train every scheme at its own best learning rate, over seeds, and say what the numbers support."""
        from normlab.experiments.compare import CompareConfig
        from normlab.experiments.compare import compare as run
        from normlab.experiments.executors import executor as by_name
        from normlab.experiments.sweep import Sweep

        config = CompareConfig(
            schemes=split_schemes(schemes), depths=numbers(depth, int, "--depth"), dim=dim, heads=heads, batch=batch,
            length=length, task=task_of(data), tokens=tokens, seeds=seeds, baseline=baseline,
            budget=budget, lrs=numbers(lrs, float, "--lrs"),
        )  # fmt: skip
        with by_name(executor, workers=workers, address=address) as cells:
            result = run(config, Sweep(out, cells, quiet=json))
        page = write_report(result, out)
        if json:
            from normlab.report import print_json

            print_json({**result, "report": str(page)})
            return
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


def write_report(result: dict[str, Any], out: Path) -> Path:
    from normlab.experiments.compare_page import build
    from normlab.files import write_json
    from normlab.report.terminal import finite

    write_json(out / "comparison.json", finite(result))
    return build(result).write(out / "report.html")


def show(result: dict[str, Any], page: Path) -> None:
    """The answer, one table and where the report is."""
    from normlab.experiments.compare_page import summary_rows
    from normlab.report import console, table

    screen = console()
    for setting in result["settings"]:
        screen.print()
        for sentence in setting["answer"]:
            screen.print(sentence, markup=False)
        rows = summary_rows(setting)
        screen.print(table(rows, columns=[name for name in rows[0] if name not in PAGE_ONLY]))
        for claim in setting["claims"]:
            mean = "" if claim["mean"] is None else f" ({claim['mean']:+.3g}, n = {claim['n']})"
            screen.print(f"{claim['verdict']:>9}: {claim['claim']}{mean}", markup=False)
    screen.print(f"\nReport: {page}", markup=False)
