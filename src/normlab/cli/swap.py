"""`normlab swap MODEL SCHEME --out FOLDER`: a scheme into a model, with a check; the folder loads as any other."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from normlab.cli._options import Device, Json, writable
from normlab.cli._request import IMPORTS, Given, add_command, asked, parameter
from normlab.experiments.request import Request, option

if TYPE_CHECKING:
    from torch import Tensor

    from normlab.probes.inputs.hub import Loaded

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A Hugging Face id, a model folder, a .gguf file, or package:NAME.")
]
SchemeName = Annotated[
    str, typer.Argument(metavar="SCHEME", help="For example block_attn_res(blocks=8); what is left out is neutral.")
]
Folder = Annotated[Path, typer.Option("--out", help="Folder for the new model.", callback=writable)]
EMPTY = inspect.Parameter.empty


class SwapRequest(Request):
    """How a model is swapped and checked."""

    kind: ClassVar[str] = "swap"
    text: str | None = option(None, "A text file to check on; else a public-domain sample serves.")
    window: int = option(256, "Tokens in a window of the check.", ge=4)
    windows: int = option(4, "How many windows.", ge=1)
    calibrate: str = option("auto", "auto or off: gains from measured sizes, where a scheme cannot be kept exactly.")
    strict: bool = option(False, "Write nothing, and exit with 1, if the function is not preserved.")


def register(app: typer.Typer) -> None:
    def run(_: typer.Context, given: Given) -> None:
        request = asked(SwapRequest, given)
        assert isinstance(request, SwapRequest)
        _swap(given.model, given.scheme, request, given)

    more = [
        parameter("model", ModelName, EMPTY), parameter("scheme", SchemeName, EMPTY),
        parameter("out", Folder, Path("runs/swap")), parameter("device", Device, "auto"), IMPORTS,
        parameter("json", Json, False),
    ]  # fmt: skip
    help = "Put a scheme into a Hugging Face model and check it. Writes a folder that transformers loads."
    add_command(app, SwapRequest, run, name="swap", help=help, more=more)


def _swap(source: str, scheme: str, request: SwapRequest, given: Given) -> None:
    from normlab.cli._options import pick_device
    from normlab.probes.inputs.hub import check_packages
    from normlab.report import print_json
    from normlab.schemes.names import parse_scheme
    from normlab.surgery.classes import register as register_types
    from normlab.surgery.swap import swap

    parse_scheme(scheme)  # a misspelt name is said before a model is loaded
    check_packages(source)
    register_types()
    device, out = pick_device(given.device), apart(source, given.out)
    loaded, batches = opened(
        source, request.text, length=request.window, count=request.windows, device=device, needs_text=False
    )
    report = swap(loaded.model, scheme, batches=batches or None, calibrate=request.calibrate)  # type: ignore[arg-type]
    refused = request.strict and not report.preserved
    if not refused:
        write_model(loaded, out, "swap.json", report.to_dict())
    if given.json:
        print_json({**report.to_dict(), "folder": None if refused else str(out)})
    else:
        typer.echo(report.text)
        typer.echo("nothing was written (--strict)" if refused else f"load it after `import normlab.hf`\nfolder: {out}")
    if refused:
        raise typer.Exit(1)


def opened(
    source: str, text: str | None, *, length: int, count: int, device: str, together: int = 2, needs_text: bool = True
) -> tuple[Loaded, list[Tensor]]:
    """A model and windows of text, so many `together` in a batch; none where it cannot read and need not."""
    import torch

    from normlab.errors import UnsupportedError
    from normlab.probes.inputs.hub import load
    from normlab.probes.inputs.texts import frame, read_text, tokenize, windows

    words = read_text(text)
    loaded = load(source)
    loaded.model.to(device)
    reads = getattr(loaded.model, "main_input_name", "input_ids")
    if reads != "input_ids":
        raise UnsupportedError(f"{loaded.name} reads {reads}, not text; use nl.swap(model, ..., batches=...) in Python")
    if loaded.tokenizer is None and text is None and not needs_text:
        return loaded, []
    ids = tokenize(loaded, words)
    rows = windows(ids, length=length, count=count, model=loaded.model, name=loaded.name, framing=frame(loaded))
    return loaded, [part.to(device) for part in torch.split(rows, together)]


def apart(source: str, out: Path) -> Path:
    """A model is not written over itself: a process that is stopped while it writes would take both."""
    from normlab.errors import InputError

    if Path(source).resolve() == out.resolve():
        raise InputError(
            f"--out {str(out)!r} is the model that is read; name another folder, and the old one stays whole"
        )
    return out


def write_model(loaded: Loaded, out: Path, name: str, report: Mapping[str, object]) -> None:
    """The model, its tokenizer and the report, or nothing of them: a folder that is not whole does not load."""
    from normlab.files import write_json
    from normlab.probes.inputs.hub import saving
    from normlab.store import whole

    with whole(out, last="config.json", parts=("model*.safetensors*", "pytorch_model*")) as room, saving(out):
        if (card := out / "README.md").is_file() and not card.is_symlink():
            shutil.copyfile(card, room / card.name)  # somebody else's stays
        loaded.model.save_pretrained(room)  # type: ignore[operator]
        if loaded.tokenizer is not None:
            loaded.tokenizer.save_pretrained(room)
        write_json(room / name, report)
