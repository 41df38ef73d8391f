"""`normlab train CONFIG`: one run, alone or under torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._options import Device, Json, pick_device


def register(app: typer.Typer) -> None:
    @app.command()
    def train(
        config: Annotated[Path, typer.Argument(help="A YAML or JSON file: model, task, train, measure.")],
        overrides: Annotated[list[str] | None, typer.Argument(help="key=value, for example train.lr=3e-3")] = None,
        strategy: Annotated[str, typer.Option(help="Under torchrun: ddp, or fsdp for sharded weights.")] = "ddp",
        out: Annotated[Path, typer.Option(help="Folder of the run; running again continues it.")] = Path("runs/train"),
        device: Device = "auto",
        json: Json = False,
    ) -> None:
        """Train one model. Under torchrun the processes share each batch: torchrun --nproc-per-node 2 -m normlab train ..."""
        from normlab.errors import ConfigError, canonical, unknown
        from normlab.experiments.cell import CellConfig, prepare, run_cell
        from normlab.experiments.train import check, train_distributed
        from normlab.training.distributed import launched

        cell = CellConfig.from_file(config).override(overrides or [])
        kind = canonical(strategy)
        if kind not in ("ddp", "fsdp"):
            raise ConfigError(unknown("strategy", strategy, ["ddp", "fsdp"]))
        place = pick_device(device)
        if launched():
            found = train_distributed(cell, out, strategy=kind, device=place, quiet=json)  # type: ignore[arg-type]
        else:
            check(cell, out)
            prepare(out, cell)
            found = run_cell(out, threads=None, device=place, quiet=json)
        if found is not None:  # the main process speaks
            _show(found, out, json=json)


def _show(found: dict[str, Any], out: Path, *, json: bool) -> None:
    from normlab.report import print_json

    if json:
        print_json({**found, "folder": str(out)})
        return
    loss = found.get("validation")
    ended = f"held-out loss {loss:.4f}" if loss is not None else "no loss"
    typer.echo(f"{found['status']} after {found['step']} steps: {ended}; written to {out}")
