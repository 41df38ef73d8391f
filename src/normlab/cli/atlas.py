"""`normlab atlas`: schemes at initialisation, measured beside their laws."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli._options import Json, Out, Seed

FIVE = ("pre_norm", "post_norm", "peri_norm", "ln_scaling", "block_attn_res")


def register(app: typer.Typer) -> None:
    @app.command()
    def atlas(
        schemes: Annotated[str, typer.Option("--schemes", help="Names with commas, or all.")] = ",".join(FIVE),
        depth: Annotated[int, typer.Option(help="Layers.")] = 24,
        dim: Annotated[int, typer.Option(help="Width.")] = 128,
        seed: Seed = 0,
        out: Out = Path("runs/atlas"),
        json: Json = False,
    ) -> None:
        """Schemes at initialisation: stream growth, gradients, depth mixing and cost, beside the closed forms."""
        from normlab.experiments import atlas as experiment
        from normlab.experiments import atlas_page
        from normlab.files import write_json
        from normlab.report import console, print_json, sparkline, table
        from normlab.report.terminal import finite
        from normlab.schemes import SCHEMES

        names = list(SCHEMES) if schemes == "all" else experiment.parse_names(schemes, FIVE)
        entries = experiment.measure(names, depth=depth, dim=dim, seed=seed)
        found = experiment.to_json(entries)
        write_json(out / "atlas.json", finite(found))
        command = f"normlab atlas --schemes {','.join(names)} --depth {depth} --dim {dim} --seed {seed}"
        shape = f"{depth} layers, width {dim}, 4 x 64 bytes of the shipped plays, seed {seed}"
        page = atlas_page.write(entries, out / "report.html", shape=shape, command=command)
        if json:
            print_json(found)
            return
        rows = atlas_page.rows(entries)
        for row, entry in zip(rows, entries, strict=True):
            row["stream"] = sparkline(entry.stream[2 :: max(1, len(entry.stream) // 12)][:14], log=True)
        console().print(table(rows, title=f"At initialisation: {shape}"))
        console().print(f"open {page.resolve()}")
