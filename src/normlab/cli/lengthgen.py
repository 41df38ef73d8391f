"""`normlab lengthgen`: schemes, fixes and averages against length, on tasks whose exact answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._options import Device, Json, Out, pick_device
from normlab.experiments.lengthgen_presets import listing


def register(app: typer.Typer) -> None:
    @app.command()
    def lengthgen(
        context: typer.Context,
        experiment: Annotated[
            str, typer.Option(help=f"A named experiment, whose settings other options override: {listing()}.")
        ] = "",
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
            str, typer.Option(help="Names with commas; the others are compared with the first.")
        ] = "pre_norm,post_norm,peri_norm,peri_init_norm",
        fixes: Annotated[str, typer.Option(help="none, ssmax, adaptive, head-norm, with commas.")] = "none",
        positions: Annotated[str, typer.Option(help="nope, rope, learned, sinusoidal, with commas.")] = "nope",
        seeds: Annotated[int, typer.Option(help="Seeds of each.")] = 5,
        seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
        train_length: Annotated[int, typer.Option(help="Longest input in training.")] = 8,
        test_lengths: Annotated[str, typer.Option(help="Lengths with commas; empty: chosen by the task.")] = "",
        test_count: Annotated[int, typer.Option(help="Sequences to score at each length.")] = 256,
        steps: Annotated[int, typer.Option(help="Optimizer steps of each run.")] = 2000,
        batch: Annotated[int, typer.Option(help="Sequences in a batch.")] = 64,
        lr: Annotated[str, typer.Option(help="Peak learning rate, or several with commas.")] = "3e-3",
        dim: Annotated[str, typer.Option(help="Width d, or several with commas; empty: the preset's.")] = "",
        head_dim: Annotated[
            str, typer.Option(help="Width of a head's values (d_v) and keys, or several; empty: d / heads.")
        ] = "",
        depth: Annotated[int, typer.Option(help="Layers; 0: the preset's.")] = 0,
        max_length: Annotated[int, typer.Option(help="Size of the table of learned positions; 0: as needed.")] = 0,
        workers: Annotated[int, typer.Option(help="Processes; 0: one a core.")] = 0,
        out: Out = Path("runs/lengthgen"),
        device: Device = "auto",
        json: Json = False,
    ) -> None:
        """Train schemes on short inputs and score them on long ones: total variation, legality, raw/EMA/BEMA.

        A command that was stopped, or killed, goes on where it was when it is given again.
        """
        from normlab.experiments.lengthgen_presets import experiment as find
        from normlab.report import print_json

        given = {key: value for key, value in context.params.items() if key not in _OWN}
        chosen = find(experiment) if experiment else None
        how: dict[str, Any] = {"workers": workers or None, "device": pick_device(device)}
        if chosen is None:
            result, page = _run(given, out, **how)
        else:
            explicit = {k: v for k, v in given.items() if _is_explicit(context, k)}
            options = {part: {**given, **chosen.options(part), **explicit} for part in chosen.parts}
            for part_options in options.values():  # a fault in the last part should not wait for the first to train
                _configure(part_options)
            parts = {part: _run(o, out / part, **how) for part, o in options.items()}
            result = {
                "experiment": experiment,
                "question": chosen.question,
                "parts": {k: r for k, (r, _) in parts.items()},
            }
        if json:
            print_json(result)
        elif chosen is None:
            _print(result, page)
        else:
            typer.echo(chosen.question)
            for part, (found, page) in parts.items():
                typer.echo(f"\n{part}")
                _print(found, page)


_OWN = ("context", "experiment", "workers", "out", "device", "json")


def lengthgen_defaults() -> dict[str, Any]:
    """The command's options as they are when nothing is given."""
    from normlab.cli import app

    command: Any = typer.main.get_command(app)
    return {p.name: p.default for p in command.commands["lengthgen"].params if p.name not in _OWN}


def _is_explicit(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _run(options: dict[str, Any], out: Path, *, workers: int | None, device: str) -> tuple[dict[str, Any], Path]:
    from normlab.experiments import lengthgen_page
    from normlab.experiments.runs import run_cells

    config = _configure(options)
    summaries = run_cells(config.cells(), out, workers=workers, device=device, quiet=False)
    result = lengthgen_page.collect(config, summaries, out)
    return result, lengthgen_page.write(result, out, command=_command(config, out))


def _configure(o: dict[str, Any]) -> Any:
    """The experiment that the options (by the names of the command's parameters) describe; bad ones are one sentence."""
    from normlab.errors import canonical
    from normlab.experiments.lengthgen import Lengthgen, default_lengths
    from normlab.tasks import task as make_task

    settings = _options(o["set_"], "--set")
    ground = make_task(o["task"], **settings)
    test_settings = _options(o["test_set"], "--test-set")
    other = make_task(o["task"], **{**settings, **test_settings}) if test_settings else None
    ground.check(o["batch"], o["train_length"])
    lengths = _numbers(o["test_lengths"], "--test-lengths") or default_lengths(ground, o["train_length"])
    return Lengthgen.from_dict(
        {
            "task": ground.to_dict(),
            "test_task": other and other.to_dict(),
            "preset": canonical(o["preset"]),
            "schemes": [canonical(name) for name in _names(o["schemes"], "--schemes")],
            "fixes": [canonical(name) for name in _names(o["fixes"], "--fixes")],
            "positions": _names(o["positions"], "--positions"),
            "seeds": o["seeds"],
            "first_seed": o["seed"],
            "train_length": o["train_length"],
            "test_lengths": list(lengths),
            "test_count": o["test_count"],
            "steps": o["steps"],
            "batch": o["batch"],
            "lrs": _rates(o["lr"]),
            "dims": _numbers(o["dim"], "--dim"),
            "head_dims": _numbers(o["head_dim"], "--head-dim"),
            "depth": o["depth"] or None,
            "max_length": o["max_length"] or None,
        }
    )


def _print(result: dict[str, Any], page: Path) -> None:
    from normlab.report import console, table

    rows, verdicts = result["summary"], result["against_first"]
    settings = [key for key in ("positions", "fix", "dim", "head_dim", "lr") if len({row[key] for row in rows}) > 1]
    names = [*settings, "scheme", "length", "tv", "tv_low", "tv_high", "auc", "illegal_mass", "loss", "diverged"]
    kept = [name for name in names if any(row.get(name) is not None for row in rows)]
    shown = [row for row in rows if row["weights"] == "raw"]
    title = f"Raw weights, median over {result['config']['seeds']} seeds with the range of tv"
    console().print(table(shown, columns=kept, title=title))
    if verdicts:
        columns = [*settings, "scheme", "length", "difference", "low", "high", "verdict"]
        shown = [row for row in verdicts if row["weights"] == "raw"]
        title = f"{verdicts[0]['metric']} minus that of {verdicts[0]['against']}, same seeds: median and its interval"
        console().print(table(shown, columns=columns, title=title))
    console().print(f"EMA, BEMA, every seed and the curves: {page.resolve()}")


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


def _rates(text: str) -> list[float]:
    from normlab.errors import ConfigError

    try:
        found = sorted({float(part) for part in text.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found:
        raise ConfigError(f"--lr takes a number, or several with commas, for example 1e-3,1e-2; {text!r} is not")
    return found


def _command(config: Any, out: Path) -> str:
    def listed(values: Any) -> str:
        return ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)

    mine = config.task.to_dict()
    options = [f"--set {k}={v}" for k, v in mine.items() if k != "task" and v is not None]
    if config.test_task is not None:
        options += [f"--test-set {k}={v}" for k, v in config.test_task.to_dict().items() if v != mine[k]]
    parts = ["normlab lengthgen", f"--task {config.task.name}", *options, f"--preset {config.preset}"]
    parts += [f"--{key} {listed(getattr(config, key))}" for key in ("schemes", "fixes", "positions")]
    parts += [f"--seeds {config.seeds}", f"--seed {config.first_seed}", f"--train-length {config.train_length}"]
    parts += [f"--test-lengths {listed(config.test_lengths)}", f"--steps {config.steps}", f"--batch {config.batch}"]
    parts += [f"--{o} {listed(getattr(config, k))}" for o, k in _LISTS.items() if getattr(config, k)]
    parts += [f"--depth {config.depth}"] if config.depth else []
    parts += [f"--max-length {config.max_length}"] if config.max_length else []
    parts += [f"--test-count {config.test_count}"] if config.test_count != 256 else []
    return " ".join([*parts, f"--out {out}"])


_LISTS = {"lr": "lrs", "dim": "dims", "head-dim": "head_dims"}
