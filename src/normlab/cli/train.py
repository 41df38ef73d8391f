"""`normlab train CONFIG`: one run, alone or under torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli._options import Device, Json, pick_device

if TYPE_CHECKING:
    from normlab.experiments.runs.records import FinishedRun


def register(app: typer.Typer) -> None:
    @app.command()
    def train(
        config: Annotated[Path, typer.Argument(help="A YAML or JSON file: model, task, train, score.")],
        overrides: Annotated[list[str] | None, typer.Argument(help="key=value, for example train.lr=3e-3")] = None,
        strategy: Annotated[str, typer.Option(help="Under torchrun: ddp, or fsdp for sharded weights.")] = "ddp",
        out: Annotated[Path, typer.Option(help="Folder of the run; running again continues it.")] = Path("runs/train"),
        device: Device = "auto",
        json: Json = False,
    ) -> None:
        """Train one model. Under torchrun the processes share each batch: torchrun --nproc-per-node 2 -m normlab train ..."""
        from normlab.errors import ConfigError, canonical, unknown
        from normlab.experiments.runs.config import RunConfig
        from normlab.experiments.runs.distributed import check, train_distributed
        from normlab.experiments.runs.folder import prepare
        from normlab.experiments.runs.trainer import run_folder
        from normlab.training.distributed import launched

        run = RunConfig.from_file(config).override(overrides or [])
        kind = canonical(strategy)
        if kind not in ("ddp", "fsdp"):
            raise ConfigError(unknown("strategy", strategy, ["ddp", "fsdp"]))
        place = pick_device(device)
        found: FinishedRun | None
        if launched():
            found = train_distributed(run, out, strategy=kind, device=place, quiet=json)  # type: ignore[arg-type]
        else:
            check(run, out)
            prepare(out, run)
            (found,) = run_folder(out, threads=None, device=place, quiet=json)
        if found is not None:  # the main process speaks
            _show(found, out, json=json)


def _show(run: FinishedRun, out: Path, *, json: bool) -> None:
    from normlab.report import print_json
    from normlab.results import as_row

    found = run.summary
    if json:
        print_json({**{k: v for k, v in as_row(found).items() if v is not None}, "folder": str(out)})
        return
    ended = f"held-out loss {found.validation:.4f}" if found.validation is not None else "no loss"
    typer.echo(f"{found.status} after {found.step} steps: {ended}; written to {out}")
