"""`normlab lengthgen`: schemes, fixes and averages against length, on tasks whose exact answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._options import Device, Json, Out, pick_device


def register(app: typer.Typer) -> None:
    @app.command()
    def lengthgen(
        task: Annotated[
            str, typer.Option(help="set-complement, max-retrieval, dyck, tomita or text.")
        ] = "set-complement",
        set_: Annotated[
            list[str] | None,
            typer.Option("--set", help="An option of the task, key=value: vocab=64, number=3, depth=5."),
        ] = None,
        test_set: Annotated[
            list[str] | None,
            typer.Option("--test-set", help="Score on another setting of the task: depth=5, key=value."),
        ] = None,
        preset: Annotated[str, typer.Option(help="minimal or two-layer.")] = "minimal",
        schemes: Annotated[
            str, typer.Option(help="Names with commas.")
        ] = "pre_norm,post_norm,peri_norm,peri_init_norm",
        fixes: Annotated[str, typer.Option(help="none, ssmax, adaptive, head-norm, with commas.")] = "none",
        positions: Annotated[str, typer.Option(help="nope, rope, learned, sinusoidal, with commas.")] = "nope",
        seeds: Annotated[int, typer.Option(help="Seeds of each.")] = 5,
        seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
        train_length: Annotated[int, typer.Option(help="Longest input in training.")] = 8,
        test_lengths: Annotated[str, typer.Option(help="Lengths with commas; empty: chosen by the task.")] = "",
        steps: Annotated[int, typer.Option(help="Optimizer steps of each run.")] = 2000,
        batch: Annotated[int, typer.Option(help="Sequences in a batch.")] = 64,
        lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-3,
        dim: Annotated[int, typer.Option(help="Width; 0: the preset's.")] = 0,
        max_length: Annotated[int, typer.Option(help="Size of the table of learned positions; 0: as needed.")] = 0,
        workers: Annotated[int, typer.Option(help="Processes; 0: one a core.")] = 0,
        out: Out = Path("runs/lengthgen"),
        device: Device = "auto",
        json: Json = False,
    ) -> None:
        """Train schemes on short inputs and score them on long ones: total variation, legality, raw/EMA/BEMA.

        A command that was stopped, or killed, goes on where it was when it is given again.
        """
        from normlab.errors import canonical
        from normlab.experiments import lengthgen_page
        from normlab.experiments.lengthgen import Lengthgen, default_lengths
        from normlab.experiments.runs import run_cells
        from normlab.report import print_json
        from normlab.tasks import task as make_task

        options = _options(set_, "--set")
        ground = make_task(task, **options)
        other = make_task(task, **{**options, **_options(test_set, "--test-set")}) if test_set else None
        ground.check(batch, train_length)
        lengths = _numbers(test_lengths, "--test-lengths") or default_lengths(ground, train_length)
        config = Lengthgen.from_dict(
            {
                "task": ground.to_dict(),
                "test_task": other and other.to_dict(),
                "preset": canonical(preset),
                "schemes": [canonical(name) for name in _names(schemes, "--schemes")],
                "fixes": [canonical(name) for name in _names(fixes, "--fixes")],
                "positions": _names(positions, "--positions"),
                "seeds": seeds,
                "first_seed": seed,
                "train_length": train_length,
                "test_lengths": list(lengths),
                "steps": steps,
                "batch": batch,
                "lr": lr,
                "dim": dim or None,
                "max_length": max_length or None,
            }
        )
        cells = config.cells()
        summaries = run_cells(cells, out, workers=workers or None, device=pick_device(device), quiet=False)
        result = lengthgen_page.collect(config, summaries, out)
        page = lengthgen_page.write(result, out, command=_command(config, out))
        if json:
            print_json(result)
            return
        _print(result, page)


def _print(result: dict[str, Any], page: Path) -> None:
    from normlab.report import console, table

    shown = [row for row in result["summary"] if row["weights"] == "bema"]
    names = [
        "positions",
        "fix",
        "scheme",
        "length",
        "tv",
        "tv_low",
        "tv_high",
        "auc",
        "illegal_mass",
        "loss",
        "diverged",
    ]
    kept = [name for name in names if any(row.get(name) is not None for row in shown)]
    title = f"BEMA weights, median over {result['config']['seeds']} seeds with the range of tv"
    console().print(table(shown, columns=kept, title=title))
    console().print(f"raw, EMA, every seed and the curves: {page.resolve()}")


def _options(assignments: list[str] | None, option: str) -> dict[str, Any]:
    from normlab.config import load_yaml
    from normlab.errors import ConfigError

    found: dict[str, Any] = {}
    for assignment in assignments or []:
        key, sign, text = assignment.partition("=")
        if not sign:
            raise ConfigError(f"{option} takes key=value, for example vocab=64; {assignment!r} is not")
        found[key.strip()] = load_yaml(text, source=f"{option} {key}")
    return found


def _names(text: str, option: str) -> list[str]:
    from normlab.errors import ConfigError

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"{option} is empty; give one name or more, with commas")
    return list(dict.fromkeys(names))


def _numbers(text: str, option: str) -> list[int]:
    from normlab.errors import ConfigError

    try:
        return sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        raise ConfigError(f"{option} takes whole numbers with commas, for example 8,16,31; {text!r} is not") from None


def _command(config: Any, out: Path) -> str:
    mine = config.task.to_dict()
    options = [f"--set {k}={v}" for k, v in mine.items() if k != "task" and v is not None]
    if config.test_task is not None:
        options += [f"--test-set {k}={v}" for k, v in config.test_task.to_dict().items() if v != mine[k]]
    parts = ["normlab lengthgen", f"--task {config.task.name}", *options, f"--preset {config.preset}"]
    parts += [f"--{key} {','.join(getattr(config, key))}" for key in ("schemes", "fixes", "positions")]
    parts += [f"--seeds {config.seeds}", f"--seed {config.first_seed}", f"--train-length {config.train_length}"]
    parts += [f"--test-lengths {','.join(map(str, config.test_lengths))}", f"--steps {config.steps}"]
    parts += [f"--batch {config.batch}", f"--lr {config.lr:g}", f"--out {out}"]
    return " ".join(parts)
