"""`normlab train CONFIG`: one run, alone or under torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli._options import Device, Imports, Json, pick_device, there, writable

if TYPE_CHECKING:
    from normlab.experiments.runs.config import RunConfig
    from normlab.experiments.runs.records import FinishedRun


def _example(asked: bool) -> None:
    if asked:
        from normlab.files import LIMITS, read_text

        typer.echo(read_text(EXAMPLE, what="the example", most=LIMITS.yaml_bytes), nl=False)
        raise typer.Exit


EXAMPLE = Path(__file__).parents[1] / "experiments" / "runs" / "data" / "example.yaml"
RunFolder = Annotated[
    Path, typer.Option("--out", help="Folder of the run; running again continues it.", callback=writable)
]


def register(app: typer.Typer) -> None:
    @app.command()
    def train(
        config: Annotated[
            Path,
            typer.Argument(help="A YAML or JSON file: model, task, train, score; or a model's folder.", callback=there),
        ],
        overrides: Annotated[list[str] | None, typer.Argument(help="key=value, for example train.lr=3e-3")] = None,
        example: Annotated[
            bool,
            typer.Option("--example", callback=_example, is_eager=True, help="Print a run to begin with, as YAML."),
        ] = False,
        strategy: Annotated[
            str | None, typer.Option(help="Under torchrun: ddp (as default), or fsdp for sharded weights.")
        ] = None,
        out: RunFolder = Path("runs/train"),
        device: Device = "auto",
        compile: Annotated[
            bool,
            typer.Option("--compile", help="torch.compile attention and FFN: half a minute at first, then quicker."),
        ] = False,
        imports: Imports = None,
        json: Json = False,
    ) -> None:
        """Train one model. Under torchrun the processes share each batch: torchrun --nproc-per-node 2 -m normlab train ..."""
        from normlab.errors import ConfigError, canonical, unknown
        from normlab.experiments.runs.config import RunConfig
        from normlab.experiments.runs.distributed import check, train_distributed
        from normlab.experiments.runs.folder import prepare
        from normlab.experiments.runs.trainer import run_folder
        from normlab.training.distributed import launched

        if strategy is not None and not launched():
            raise ConfigError(
                "--strategy is for several processes, and this is one; start it with torchrun --nproc-per-node 2 -m normlab "
                "train ..., or leave it out"
            )
        if (config / "config.json").is_file():
            if compile:
                raise ConfigError("--compile is for a new run: a model's folder is trained on as it is")
            _continue(config, overrides or [], out, device=pick_device(device), json=json)
            return
        run, shortened = with_warmup(RunConfig, config, overrides or [])
        if shortened:
            typer.echo(shortened, err=True)
        kind = canonical(strategy or "ddp")
        if kind not in ("ddp", "fsdp"):
            raise ConfigError(unknown("strategy", strategy or "", ["ddp", "fsdp"]))
        place = pick_device(device)
        found: FinishedRun | None
        if launched():
            if compile:
                raise ConfigError("--compile is for one process: leave it out under torchrun")
            found = train_distributed(run, out, strategy=kind, device=place, quiet=json)  # type: ignore[arg-type]
        else:
            check(run, out)
            prepare(out, run)
            (found,) = run_folder(out, threads=None, device=place, quiet=json, compiled=compile)
        if found is not None:  # the main process speaks
            _show(found, out, json=json)


def with_warmup(kind: type[RunConfig], path: Path, overrides: list[str]) -> tuple[RunConfig, str]:
    """The run; a warm-up that nobody asked for is a tenth of the steps where there are few, and a sentence says so."""
    from normlab.config import load_yaml
    from normlab.training import TrainConfig

    run = kind.from_file(path)
    values = load_yaml(path.read_text(encoding="utf-8"))
    given = "schedule" in (values.get("train") or {}) or any(text.startswith("train.schedule") for text in overrides)
    if given:
        return run.override(overrides), ""
    steps = run.override(["train.schedule.warmup=0", *overrides]).train.steps
    usual = TrainConfig().schedule.warmup
    if steps > usual:
        return run.override([f"train.schedule.warmup={usual}", *overrides]), ""
    note = f"warm-up: {steps // 10} of {steps} steps, where {usual} are usual (train.schedule.warmup=N sets it)"
    return run.override([f"train.schedule.warmup={steps // 10}", *overrides]), note


def _continue(source: Path, overrides: list[str], out: Path, *, device: str, json: bool) -> None:
    """A model folder, trained on; what a swap has added learns faster."""
    import torch

    from normlab.cli.swap import apart, opened, write_model
    from normlab.errors import InputError
    from normlab.probes.inputs.hub import check_packages
    from normlab.report import print_json
    from normlab.surgery.classes import register as register_types
    from normlab.surgery.heal import Continue, continue_training

    check_packages(str(source))
    register_types()
    apart(str(source), out)
    how = Continue().override(overrides)
    if how.warmup >= how.steps and not any(text.startswith("warmup") for text in overrides):
        how = how.replace(warmup=how.steps // 10)
        typer.echo(f"warm-up: {how.warmup} of {how.steps} steps (warmup=N sets it)", err=True)
    loaded, batches = opened(str(source), how.text, length=how.length, count=1 << 20, device=device, together=1)
    if len(batches) < 2:
        raise InputError("the text is one window long: give a longer text=FILE, or a shorter length=")
    judging = max(1, len(batches) // 10)
    train, held_out = torch.cat(batches[:-judging]), [{"input_ids": batch} for batch in batches[-judging:]]
    tell = (
        (lambda step, loss: None) if json else (lambda step, loss: typer.echo(f"step {step}: held-out loss {loss:.4f}"))
    )
    curve = continue_training(loaded.model, train, held_out, how, tell=tell)
    write_model(loaded, out, "training.json", {**curve.to_dict(), "how": how.to_dict()})
    if json:
        print_json({**curve.to_dict(), "folder": str(out)})
    else:
        typer.echo(f"{curve.text}\nfolder: {out}")


def _show(run: FinishedRun, out: Path, *, json: bool) -> None:
    from normlab.report import print_json
    from normlab.results import as_row

    found = run.summary
    if json:
        print_json({**{k: v for k, v in as_row(found).items() if v is not None}, "folder": str(out)})
        return
    ended = f"held-out loss {found.validation:.4f}" if found.validation is not None else "no loss"
    typer.echo(f"{found.status} after {found.step} steps: {ended}\nfolder: {out}")
