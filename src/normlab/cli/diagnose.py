"""`normlab diagnose MODEL ...`: is the residual stream of this model healthy?"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli._options import Device, Json, Out, Seed, pick_device

if TYPE_CHECKING:
    from torch import Tensor

    from normlab.probes.diagnosis import Diagnosis
    from normlab.probes.inputs.hub import Loaded
    from normlab.probes.inputs.request import DiagnoseOptions

SAMPLE = "the sample of the package (The Devil's Dictionary, 1911)"

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="A Hugging Face id, a model folder, a .gguf file, a normlab run, or package:NAME (an installed package). "
        "At most 10,000 layers; nothing of it runs.",
    ),
]
Text = Annotated[
    Path | None, typer.Option("--text", help="A text file (its first 16 MB); else a public-domain sample serves.")
]
Tokens = Annotated[
    Path | None, typer.Option("--tokens", help="Token ids instead of text: a JSON list or numbers, at most 16 MB.")
]
Images = Annotated[
    Path | None, typer.Option("--images", help="A folder of images for a model that reads them; generated ones serve.")
]
Window = Annotated[int, typer.Option("--window", min=4, help="Tokens in a window.")]
Windows = Annotated[
    int | None, typer.Option("--windows", min=1, help="How many windows or images: 8; 32 for encoders.")
]
LossName = Annotated[str, typer.Option("--loss", help="auto, causal, masked, contrastive or none.")]
Longest = Annotated[int, typer.Option("--max-length", min=64, help="Longest text for attention against length.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the layer table to this file.")]
Skips = Annotated[bool, typer.Option("--skips/--no-skips", help="Skip each layer and measure the loss.")]
Html = Annotated[bool, typer.Option("--html/--no-html", help="Write report.html into the folder of --out.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if a verdict is a warning or a fault.")]
Pickle = Annotated[bool, typer.Option("--allow-pickle", help="Load weights that are pickles. They can run code.")]
Remote = Annotated[bool, typer.Option("--trust-remote-code", help="Run the model's own code. It can do anything.")]


def register(app: typer.Typer) -> None:
    @app.command()
    def diagnose(
        models: Models,
        text: Text = None,
        tokens: Tokens = None,
        images: Images = None,
        window: Window = 256,
        windows: Windows = None,
        loss: LossName = "auto",
        max_length: Longest = 1024,
        skips: Skips = True,
        html: Html = True,
        csv: Csv = None,
        strict: Strict = False,
        allow_pickle: Pickle = False,
        trust_remote_code: Remote = False,
        out: Out = Path("runs/diagnose"),
        device: Device = "auto",
        seed: Seed = 0,
        json: Json = False,
    ) -> None:
        """Dilution, gradient imbalance, collapse, dispersion, sinks, wasted layers: numbers and what to try."""
        from normlab.probes.diagnosis import table_csv
        from normlab.probes.inputs.request import DiagnoseOptions
        from normlab.probes.inputs.texts import read_text, read_tokens

        asked = Asked(
            text=read_tokens(tokens) if tokens is not None else read_text(text),
            named=str(tokens) if tokens else str(text) if text else SAMPLE,
            images=images,
            window=window,
            windows=windows,
            allow_pickle=allow_pickle,
            remote_code=trust_remote_code,
            device=pick_device(device),
            options=DiagnoseOptions(loss=loss, longest=max_length, skips=skips, seed=seed),
        )
        found = [_one(model, asked) for model in models]
        if csv is not None:
            from normlab.files import write_text

            write_text(csv, table_csv(found))
        _write(found, out, html=html)
        _show(found, json=json)
        if not json:
            typer.echo(f"\nwritten: {out / 'report.html' if html else out / 'diagnosis.json'}")
        if strict and any(d.worst in ("bad", "warn") for d in found):
            raise typer.Exit(1)


@dataclass(frozen=True)
class Asked:
    """What the models are shown, how they are loaded, and how much is measured."""

    text: str | Tensor
    named: str  # where the text comes from
    images: Path | None
    window: int
    windows: int | None
    allow_pickle: bool
    remote_code: bool
    device: str
    options: DiagnoseOptions


def _one(source: str, asked: Asked) -> Diagnosis:
    from normlab.probes.diagnose import diagnose
    from normlab.probes.inputs.hub import load
    from normlab.probes.inputs.runs import is_run, load_run

    stages = Stages(source)
    stages("loading", 0, 0)
    run = is_run(source)
    loaded = load_run(source) if run else load(source, allow_pickle=asked.allow_pickle, remote_code=asked.remote_code)
    reads, options, tokenizer = getattr(loaded.model, "main_input_name", None), asked.options, loaded.tokenizer
    if reads == "pixel_values":
        batches, shown = _pictures(loaded, source, asked)
    else:
        batches, shown = _windows(loaded, asked), asked.named
        special = tuple(getattr(tokenizer, "all_special_ids", ()))
        options = replace(options, mask_id=getattr(tokenizer, "mask_token_id", None), special_ids=special)
    batches = [part.to(asked.device) for part in batches]
    named = [{reads: part} for part in batches] if reads else batches  # transformers' models want names, ours a tensor
    result = diagnose(loaded.model.to(asked.device), named, name=loaded.name, options=options, progress=stages)
    stages.end()
    how = replace(result.how, images=shown) if reads == "pixel_values" else replace(result.how, text=shown)
    return replace(result, notes=(*result.notes, *loaded.notes), how=how)


def _windows(loaded: Loaded, asked: Asked) -> list[Tensor]:
    import torch

    from normlab.errors import InputError, UnsupportedError
    from normlab.probes.inputs.texts import frame, tokenize, windows

    reads = getattr(loaded.model, "main_input_name", "input_ids")
    if reads != "input_ids":
        raise UnsupportedError(
            f"{loaded.name} reads {reads}, neither text nor images; call nl.diagnose(model, batches) in Python"
        )
    if asked.images is not None:
        raise InputError(f"--images was given, but {loaded.name} reads text; leave it out")
    ids = asked.text if isinstance(asked.text, torch.Tensor) else tokenize(loaded, asked.text)
    name = type(loaded.model).__name__
    # Without a head the loss compares windows with each other, and a masked one counts a seventh of the tokens.
    count = asked.windows or (32 if name.endswith(("Model", "ForMaskedLM")) else 8)
    rows = windows(ids, length=asked.window, count=count, model=loaded.model, name=loaded.name, framing=frame(loaded))
    return list(torch.split(rows, 8))


def _pictures(loaded: Loaded, source: str, asked: Asked) -> tuple[list[Tensor], str]:
    from torch import split

    from normlab.probes.inputs import images

    shape, scale, count = images.size_of(loaded.model), images.scaling(source), asked.windows or 32
    if asked.images is not None:
        pixels, shown = images.read_images(asked.images, shape, count=count, scale=scale), str(asked.images)
    else:
        pixels = images.sample_images(shape, count=count, seed=asked.options.seed, scale=scale)
        shown = "generated colour fields with discs"
        loaded.notes.append("the images are generated, not photographs: pass --images FOLDER for numbers on real ones")
    return list(split(pixels, 8)), shown


def _write(found: list[Diagnosis], out: Path, *, html: bool) -> None:
    from normlab.files import write_json
    from normlab.probes.show.page import build

    write_json(out / "diagnosis.json", [d.to_dict() for d in found])
    if html:
        build(found).write(out / "report.html")


def _show(found: list[Diagnosis], *, json: bool) -> None:
    from normlab.probes.show.text import as_text, compare_text
    from normlab.report import print_json

    if json:
        print_json([d.to_dict() for d in found] if len(found) > 1 else found[0].to_dict())
        return
    for d in found:
        typer.echo(as_text(d) + "\n")
    if len(found) > 1:
        typer.echo(compare_text(found))


class Stages:
    """What is being done and how long it takes, on stderr: one changing line on a terminal, plain lines elsewhere."""

    def __init__(self, name: str) -> None:
        self.name, self.stage, self.start, self.printed = name, "", time.monotonic(), 0.0
        self.live = sys.stderr.isatty()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        fresh = stage != self.stage
        if fresh:
            self.stage, self.start = stage, now
        elif not self.live and now - self.printed < 5:
            return
        self.printed = now
        left = f", about {(now - self.start) / done * (total - done):.0f} s left" if done else ""
        line = f"{self.name}: {stage}" + (f" {done}/{total}{left}" if total else "")
        print(f"\r\x1b[K{line}" if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
