"""`normlab stability`: a map of learning rate x warm-up per scheme."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._options import Json
from normlab.cli.compare import Address, Data, Depth, ExecutorName, Schemes, Workers, numbers, split_schemes, task_of


def register(app: typer.Typer) -> None:
    @app.command()
    def stability(
        schemes: Schemes = "post_norm,pre_norm",
        depth: Depth = "12",
        dim: Annotated[int, typer.Option(help="Width.")] = 64,
        heads: Annotated[int, typer.Option(help="Attention heads.")] = 4,
        data: Data = None,
        steps: Annotated[int, typer.Option(help="Steps of each run.")] = 100,
        warmups: Annotated[str, typer.Option(help="Steps of warm-up, with commas.")] = "0,10,30",
        lrs: Annotated[str, typer.Option(help="The first, coarse grid of learning rates.")] = "1e-3,1e-2,1e-1",
        factor: Annotated[float, typer.Option(help="How closely the edge is bracketed.")] = 1.5,
        seeds: Annotated[int, typer.Option(help="Seeds of each point; it is stable if all are.")] = 1,
        batch: Annotated[int, typer.Option(help="Sequences a step.")] = 8,
        length: Annotated[int, typer.Option(help="Tokens a sequence.")] = 64,
        clip: Annotated[float, typer.Option(help="Gradient clipping; 0: none.")] = 1.0,
        executor: ExecutorName = "local",
        address: Address = None,
        workers: Workers = 0,
        out: Annotated[Path, typer.Option(help="Folder of the sweep; running again continues it.")] = Path(
            "runs/stability"
        ),
        json: Json = False,
    ) -> None:
        """Find how high the learning rate may go, for each warm-up, scheme and depth."""
        from normlab.experiments.executors import executor as by_name
        from normlab.experiments.stability import StabilityConfig
        from normlab.experiments.stability import stability as run
        from normlab.experiments.sweep import Sweep

        config = StabilityConfig(
            schemes=split_schemes(schemes), depths=numbers(depth, int, "--depth"), dim=dim, heads=heads, batch=batch,
            length=length, task=task_of(data), steps=steps, warmups=numbers(warmups, int, "--warmups"),
            lrs=numbers(lrs, float, "--lrs"), seeds=seeds, factor=factor, clip=clip or None,
        ).check()  # fmt: skip
        with by_name(executor, workers=workers, address=address) as cells:
            result = run(config, Sweep(out, cells, quiet=json))
        page = write_report(result, out)
        if json:
            from normlab.report import print_json

            print_json({**result, "report": str(page)})
            return
        show(result, page)


def write_report(result: dict[str, Any], out: Path) -> Path:
    from normlab.experiments.stability_page import build
    from normlab.files import write_json
    from normlab.report.terminal import finite

    write_json(out / "stability.json", finite(result))
    return build(result).write(out / "report.html")


def show(result: dict[str, Any], page: Path) -> None:
    from normlab.experiments.stability_page import summary_rows
    from normlab.report import console, table

    screen = console()
    for sentence in result["statements"]:
        screen.print(sentence, markup=False)
    screen.print(table(summary_rows(result)))
    for claim in result["claims"]:
        mean = "no seed" if claim["mean"] is None else f"{claim['mean']:+.3g} {claim['number']}, n = {claim['n']}"
        screen.print(f"{claim['verdict']:>9}: {claim['claim']} ({mean})", markup=False)
    screen.print(f"\nReport: {page}", markup=False)
