"""`normlab prune MODEL --out FOLDER`: layers out of a model, chosen by the loss, and a folder that loads as what it is."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import typer

from normlab.cli._options import Device, Json
from normlab.cli._request import IMPORTS, Given, add_command, asked, explicit, parameter
from normlab.cli.swap import EMPTY, Folder, ModelName, apart, opened, write_model
from normlab.errors import ConfigError
from normlab.experiments.request import Request, option


class PruneRequest(Request):
    """Which layers go, and what is done for the others."""

    kind: ClassVar[str] = "prune"
    layers: tuple[int, ...] | None = option(
        None, "Layers to take out, counted from 0, with commas; else they are chosen."
    )
    most: int | None = option(None, "Choose at most this many, by what the loss misses least.", ge=1)
    max_loss: float | None = option(None, "Choose as many as cost at most this much loss, error bars included.", gt=0)
    text: str | None = option(None, "A text file; its first half chooses and heals, its second half judges.")
    window: int = option(256, "Tokens in a window.", ge=4)
    windows: int = option(8, "How many windows choose the layers, and as many others judge.", ge=2)
    heal: int = option(0, "Steps of training for the layers beside a gap; 0: none.", ge=0)
    lr: float = option(1e-4, "Learning rate of healing.", gt=0)


def register(app: typer.Typer) -> None:
    def run(context: typer.Context, given: Given) -> None:
        request = asked(PruneRequest, given)
        assert isinstance(request, PruneRequest)
        typed = explicit(context, given)
        if "lr" in typed and not request.heal:
            raise ConfigError("--lr is the rate of healing: give --heal STEPS too, or leave it out")
        beside = [name for name in ("most", "max_loss") if name in typed]
        if request.layers is not None and beside:
            option = beside[0].replace("_", "-")
            raise ConfigError(f"--{option} chooses layers, and --layers names them; give one of the two")
        _prune(given.model, request, given)

    more = [
        parameter("model", ModelName, EMPTY), parameter("out", Folder, Path("runs/prune")),
        parameter("device", Device, "auto"), IMPORTS, parameter("json", Json, False),
    ]  # fmt: skip
    help = "Take layers out of a Hugging Face model. Heals what is left if asked, and writes a folder."
    add_command(app, PruneRequest, run, name="prune", help=help, more=more)


def _prune(source: str, request: PruneRequest, given: Given) -> None:
    from normlab.cli._options import pick_device
    from normlab.report import print_json
    from normlab.surgery.heal import Heal
    from normlab.surgery.prune import choose, prune

    out = apart(source, given.out)
    windows = 2 * request.windows if not request.heal else 10 * request.windows
    loaded, batches = opened(
        source, request.text, length=request.window, count=windows, device=pick_device(given.device)
    )
    judging = max(1, request.windows // 2)
    shown, rest = batches[-judging:], batches[:-judging]
    layers = request.layers
    if layers is None:
        chosen = choose(loaded.model, rest[:judging], most=request.most, max_loss=request.max_loss)
        layers = tuple(choice.layer for choice in chosen)
    how = Heal(rest, steps=request.heal, lr=request.lr) if request.heal else None
    report = prune(loaded.model, list(layers), batches=shown, heal=how)
    write_model(loaded, out, "prune.json", report.to_dict())
    if given.json:
        print_json({**report.to_dict(), "folder": str(out)})
    else:
        typer.echo(f"{report.text}\nfolder: {out}")
