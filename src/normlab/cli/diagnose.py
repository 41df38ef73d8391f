"""`normlab diagnose MODEL ...`: is the residual stream of this model healthy?"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlab.cli._options import Device, Json, Out, Seed, pick_device

if TYPE_CHECKING:
    from normlab.probes.diagnosis import Diagnosis
    from normlab.probes.loading import Loaded

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
        from normlab.probes.texts import read_text, read_tokens

        content = Content(read_tokens(tokens) if tokens is not None else read_text(text), images)
        content.named = str(tokens) if tokens else str(text) if text else SAMPLE
        place = pick_device(device)
        found = []
        for model in models:
            options = {"loss": loss, "longest": max_length, "skips": skips, "seed": seed}
            safety = {"allow_pickle": allow_pickle, "remote_code": trust_remote_code}
            found.append(_one(model, content, shape=(window, windows), safety=safety, device=place, options=options))
        if csv is not None:
            from normlab.files import write_text

            write_text(csv, table_csv(found))
        _write(found, out, html=html)
        _show(found, json=json)
        if not json:
            typer.echo(f"\nwritten: {out / 'report.html' if html else out / 'diagnosis.json'}")
        if strict and any(d.worst in ("bad", "warn") for d in found):
            raise typer.Exit(1)


@dataclass
class Content:
    """What the models are shown: text or token ids, and a folder of images for those that read pixels."""

    text: Any
    images: Path | None
    named: str = ""


def _one(
    source: str,
    content: Content,
    *,
    shape: tuple[int, int | None],
    safety: dict[str, bool],
    device: str,
    options: dict[str, Any],
) -> Diagnosis:
    from normlab.cli._runs import is_run, load_run
    from normlab.probes.diagnose import diagnose
    from normlab.probes.loading import load

    stages = Stages(source)
    stages("loading", 0, 0)
    loaded = load_run(source) if is_run(source) else load(source, **safety)
    reads = getattr(loaded.model, "main_input_name", None)
    if reads == "pixel_values":
        batches, shown = _pictures(loaded, source, content, shape[1] or 32, options["seed"])
    else:
        batches, shown = _windows(loaded, content, shape), content.named
        options["mask_id"] = getattr(loaded.tokenizer, "mask_token_id", None)
        options["special_ids"] = tuple(getattr(loaded.tokenizer, "all_special_ids", ()))
    batches = [part.to(device) for part in batches]
    named = [{reads: part} for part in batches] if reads else batches  # transformers' models want names, ours a tensor
    result = diagnose(loaded.model.to(device), named, name=loaded.name, progress=stages, **options)
    result.notes += loaded.notes
    result.how["text" if reads != "pixel_values" else "images"] = shown
    stages.end()
    return result


def _windows(loaded: Loaded, content: Content, shape: tuple[int, int | None]) -> list[Any]:
    import torch

    from normlab.errors import InputError, UnsupportedError
    from normlab.probes.texts import frame, tokenize, windows

    reads = getattr(loaded.model, "main_input_name", "input_ids")
    if reads != "input_ids":
        raise UnsupportedError(
            f"{loaded.name} reads {reads}, neither text nor images; call nl.diagnose(model, batches) in Python"
        )
    if content.images is not None:
        raise InputError(f"--images was given, but {loaded.name} reads text; leave it out")
    ids = content.text if isinstance(content.text, torch.Tensor) else tokenize(loaded, content.text)
    name = type(loaded.model).__name__
    # Without a head the loss compares windows with each other, and a masked one counts a seventh of the tokens.
    length, count = shape[0], shape[1] or (32 if name.endswith(("Model", "ForMaskedLM")) else 8)
    rows = windows(ids, length=length, count=count, model=loaded.model, name=loaded.name, framing=frame(loaded))
    return list(rows.split(8))


def _pictures(loaded: Loaded, source: str, content: Content, count: int, seed: int) -> tuple[list[Any], str]:
    from normlab.probes import pictures

    shape, scale = pictures.size_of(loaded.model), pictures.scaling(source)
    if content.images is not None:
        pixels = pictures.read_images(content.images, shape, count=count, scale=scale)
        shown = str(content.images)
    else:
        pixels = pictures.sample_images(shape, count=count, seed=seed, scale=scale)
        shown = "generated colour fields with discs"
        loaded.notes.append("the images are generated, not photographs: pass --images FOLDER for numbers on real ones")
    return list(pixels.split(8)), shown


def _write(found: list[Diagnosis], out: Path, *, html: bool) -> None:
    from normlab.files import write_json
    from normlab.probes.page import build

    write_json(out / "diagnosis.json", [d.to_dict() for d in found])
    if html:
        build(found).write(out / "report.html")


def _show(found: list[Diagnosis], *, json: bool) -> None:
    from normlab.probes.view import as_text, compare_text
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
