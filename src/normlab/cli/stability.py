"""`normlab stability`: a map of learning rate x warm-up per scheme."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli import _sweeps as sweeps
from normlab.cli._options import Device, Json

PAGE_ONLY = ("unstable from", "gradient spikes")


def register(app: typer.Typer) -> None:
    @app.command()
    def stability(
        schemes: sweeps.Schemes = "post_norm,pre_norm",
        depth: sweeps.Depth = "12",
        dim: sweeps.Dim = 64,
        heads: sweeps.Heads = 4,
        data: sweeps.Data = None,
        steps: Annotated[int, typer.Option(help="Steps of each run.")] = 100,
        warmups: Annotated[str, typer.Option(help="Steps of warm-up, with commas.")] = "0,10,30",
        lrs: Annotated[str, typer.Option(help="The first, coarse grid of learning rates.")] = "1e-3,1e-2,1e-1",
        factor: Annotated[float, typer.Option(help="How closely the edges are bracketed.")] = 1.5,
        edges: Annotated[str, typer.Option(help="both, stable or learning: which edges are looked for.")] = "both",
        seeds: Annotated[int, typer.Option(help="Seeds of each point; it is stable if all are.")] = 1,
        batch: sweeps.Batch = 8,
        length: sweeps.Length = 64,
        clip: Annotated[float, typer.Option(help="Gradient clipping; 0: none.")] = 1.0,
        executor: sweeps.ExecutorName = "local",
        address: sweeps.Address = None,
        workers: sweeps.Workers = 0,
        device: Device = "cpu",
        out: sweeps.SweepOut = Path("runs/stability"),
        json: Json = False,
    ) -> None:
        """Find how high the learning rate may go, for each warm-up, scheme and depth."""
        from normlab.experiments.stability import StabilityConfig
        from normlab.experiments.stability import stability as run

        config = StabilityConfig(
            schemes=sweeps.split_schemes(schemes), steps=steps, warmups=sweeps.numbers(warmups, int, "--warmups"),
            lrs=sweeps.numbers(lrs, float, "--lrs"), seeds=seeds, factor=factor, edges=edges,  # type: ignore[arg-type]
            clip=clip or None,
            **sweeps.shape(depth, dim, heads, batch, length, data),
        ).check()  # fmt: skip
        result = sweeps.carry_out(
            run, config, out, executor=executor, address=address, workers=workers, device=device, quiet=json
        )
        sweeps.deliver(result, out, show=show, json=json)


def show(result: dict[str, Any], page: Path) -> None:
    """The sentences, the table and the claims."""
    from normlab.experiments.stability_page import summary_rows
    from normlab.report import console, table

    screen = console()
    for note in result["notes"]:
        screen.print(note, style="yellow", markup=False)
    for sentence in result["statements"]:
        screen.print(sentence, markup=False)
    rows = summary_rows(result)
    screen.print(table(rows, columns=[name for name in rows[0] if name not in PAGE_ONLY]))
    for claim in result["claims"]:
        mean = "no seed" if claim["mean"] is None else f"{claim['mean']:+.3g} {claim['number']}, n = {claim['n']}"
        why = f"; {claim['reason']}" if claim["reason"] else ""
        screen.print(f"{claim['verdict']:>9}: {claim['claim']} ({mean}{why})", markup=False)
    screen.print(f"\nReport: {page}", markup=False)
