"""`normlab compare`: which scheme should I use?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli import _sweeps as sweeps
from normlab.cli._options import Device, Json

# Columns that only the page has room for.
FEW = 8  # schemes; of more, the page and tables.md have the sentences
PAGE_ONLY = ("params (M)", "MFLOP a token")


def register(app: typer.Typer) -> None:
    @app.command()
    def compare(
        schemes: sweeps.Schemes = "post_norm,pre_norm,peri_norm,ln_scaling,block_attn_res",
        depth: sweeps.Depth = "12",
        dim: sweeps.Dim = 64,
        heads: sweeps.Heads = 4,
        data: sweeps.Data = None,
        budget: Annotated[
            str | None, typer.Option(help="Time of the whole comparison: 90s, 10m, 2h (default: 10m).")
        ] = None,
        tokens: Annotated[int | None, typer.Option(help="Training tokens of each run, instead of a time.")] = None,
        seeds: Annotated[int, typer.Option(help="Seeds of each scheme at its best rate.")] = 2,
        lrs: Annotated[str, typer.Option(help="Learning rates to tune over, with commas.")] = "1e-3,3e-3,1e-2",
        batch: sweeps.Batch = 16,
        length: sweeps.Length = 64,
        baseline: Annotated[str | None, typer.Option(help="What the others are compared with.")] = None,
        executor: sweeps.ExecutorName = "local",
        address: sweeps.Address = None,
        workers: sweeps.Workers = 0,
        device: Device = "cpu",
        out: sweeps.SweepOut = Path("runs/compare"),
        json: Json = False,
    ) -> None:
        """Train every scheme at its own best learning rate, over seeds, and say what the numbers support."""
        from normlab.experiments.compare import CompareConfig
        from normlab.experiments.compare import compare as run

        config = CompareConfig(
            schemes=sweeps.split_schemes(schemes), tokens=tokens, budget=budget, seeds=seeds, baseline=baseline,
            lrs=sweeps.numbers(lrs, float, "--lrs"), **sweeps.shape(depth, dim, heads, batch, length, data),
        )  # fmt: skip
        result = sweeps.carry_out(
            run, config, out, executor=executor, address=address, workers=workers, device=device, quiet=json
        )
        sweeps.deliver(result, out, show=show, json=json)


def show(result: dict[str, Any], page: Path) -> None:
    """The answer, one table and where the report is."""
    from normlab.experiments.compare_page import summary_rows
    from normlab.report import console, table

    screen = console()
    for note in result["notes"]:
        screen.print(note, style="yellow", markup=False)
    for setting in result["settings"]:
        screen.print()
        for sentence in setting["answer"]:
            screen.print(sentence, markup=False)
        rows = summary_rows(setting)
        screen.print(table(rows, columns=[name for name in rows[0] if name not in PAGE_ONLY]))
        if len(rows) <= FEW:
            for sentence in setting["statements"].values():
                screen.print(f"- {sentence}", markup=False)
        for claim in setting["claims"]:
            mean = "" if claim["mean"] is None else f" ({claim['mean']:+.3g}, n = {claim['n']})"
            screen.print(f"{claim['verdict']:>9}: {claim['claim']}{mean}", markup=False)
    screen.print(f"\nReport: {page}", markup=False)
