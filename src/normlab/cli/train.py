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
        config: Annotated[
            Path,
            typer.Argument(help="A YAML or JSON file: model, task, train, score; or a model's folder."),
        ],
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

        if (config / "config.json").is_file():
            _continue(config, overrides or [], out, device=pick_device(device), json=json)
            return
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


def _continue(source: Path, overrides: list[str], out: Path, *, device: str, json: bool) -> None:
    """A model folder, trained on; what a swap has added learns faster."""
    import torch

    from normlab.cli.swap import opened, write_model
    from normlab.errors import InputError
    from normlab.files import write_json
    from normlab.report import print_json
    from normlab.surgery.classes import register as register_types
    from normlab.surgery.heal import Continue, continue_training

    register_types()
    how = Continue().override(overrides)
    loaded, batches = opened(str(source), how.text, length=how.length, count=1 << 20, device=device, together=1)
    if len(batches) < 2:
        raise InputError("the text is one window long: give a longer text=FILE, or a shorter length=")
    judging = max(1, len(batches) // 10)
    train, held_out = torch.cat(batches[:-judging]), [{"input_ids": batch} for batch in batches[-judging:]]
    tell = (
        (lambda step, loss: None) if json else (lambda step, loss: typer.echo(f"step {step}: held-out loss {loss:.4f}"))
    )
    curve = continue_training(loaded.model, train, held_out, how, tell=tell)
    write_model(loaded, out)
    write_json(out / "training.json", {**curve.to_dict(), "how": how.to_dict()})
    if json:
        print_json({**curve.to_dict(), "folder": str(out)})
    else:
        typer.echo(f"{curve.text}; written to {out}")


def _show(run: FinishedRun, out: Path, *, json: bool) -> None:
    from normlab.report import print_json
    from normlab.results import as_row

    found = run.summary
    if json:
        print_json({**{k: v for k, v in as_row(found).items() if v is not None}, "folder": str(out)})
        return
    ended = f"held-out loss {found.validation:.4f}" if found.validation is not None else "no loss"
    typer.echo(f"{found.status} after {found.step} steps: {ended}; written to {out}")
