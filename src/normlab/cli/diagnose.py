"""`normlab diagnose MODEL ...`: is the residual stream of this model healthy?"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli._options import Device, Json, Out, Seed, pick_device

if TYPE_CHECKING:
    from normlab.probes.change import Change
    from normlab.probes.diagnosis import Diagnosis
    from normlab.probes.inputs.request import DiagnoseOptions
    from normlab.probes.inputs.sources import Material, Prepared

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="A Hugging Face id, a model folder, a .gguf file, a normlab run, or package:NAME (an installed package). "
        "At most 10,000 layers; nothing of it runs. Two checkpoints of one model: what changed from the first to the second.",
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
Window = Annotated[
    int | None, typer.Option("--window", min=4, help="Tokens in a window: 256, or what the model can read.")
]
Windows = Annotated[
    int | None, typer.Option("--windows", min=1, help="How many windows or images: 8; 32 for encoders.")
]
LossName = Annotated[str, typer.Option("--loss", help="auto, causal, masked, contrastive or none.")]
Longest = Annotated[int, typer.Option("--max-length", min=64, help="Longest text for attention against length.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the layer table to this file.")]
Skips = Annotated[bool, typer.Option("--skips/--no-skips", help="Skip each layer and measure the loss.")]
Html = Annotated[bool, typer.Option("--html/--no-html", help="Write report.html into the folder of --out.")]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--max-seconds", min=1, help="Then nothing optional begins (lengths, gradients, skips); says what is left out."
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 if there is a fault or a warning; notes do not count.")
]
Pickle = Annotated[bool, typer.Option("--allow-pickle", help="Load weights that are pickles. They can run code.")]
Remote = Annotated[bool, typer.Option("--trust-remote-code", help="Run the model's own code. It can do anything.")]


def register(app: typer.Typer) -> None:
    @app.command()
    def diagnose(
        models: Models,
        text: Text = None,
        tokens: Tokens = None,
        images: Images = None,
        window: Window = None,
        windows: Windows = None,
        loss: LossName = "auto",
        max_length: Longest = 1024,
        skips: Skips = True,
        max_seconds: Seconds = None,
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
        """Is the residual stream of a model healthy? One sentence, then verdicts, plots and numbers, and what to try."""
        from normlab.errors import ConfigError
        from normlab.probes.inputs.request import DiagnoseOptions
        from normlab.probes.inputs.sources import SAMPLE, Material
        from normlab.probes.inputs.texts import read_text, read_tokens

        if text is not None and tokens is not None:
            raise ConfigError("--text and --tokens both say what is read; give one of the two")
        asked = Asked(
            material=Material(
                text=read_tokens(tokens) if tokens is not None else read_text(text),
                named=str(tokens) if tokens else str(text) if text else SAMPLE,
                images=images,
                window=window,
                windows=windows,
                allow_pickle=allow_pickle,
                remote_code=trust_remote_code,
                device=pick_device(device),
            ),
            options=DiagnoseOptions(loss=loss, longest=max_length, skips=skips, seed=seed, max_seconds=max_seconds),
        )
        found = examine(models, asked)
        write(found, out, html=html, csv=csv)
        show(found, json=json)
        if not json:
            typer.echo(f"\npage: {out / 'report.html'}" if html else f"\nfolder: {out}")
        if strict and any(d.worst in ("bad", "warn") for d in found.diagnoses):
            raise typer.Exit(1)


@dataclass(frozen=True)
class Asked:
    """What the models are shown, how they are loaded, and how much is measured."""

    material: Material
    options: DiagnoseOptions


@dataclass(frozen=True)
class Found:
    """One diagnosis per model; of two checkpoints of one model also what changed, else why that cannot be said."""

    diagnoses: tuple[Diagnosis, ...]
    change: Change | None = None
    why_not: str | None = None


def examine(models: list[str], asked: Asked) -> Found:
    from normlab.probes.change import change_of, why_not
    from normlab.probes.diagnose import diagnose_prepared

    if len(models) != 2:
        found = []
        for model in models:
            with staged(model) as stages:
                found.append(diagnose_prepared(_prepared(model, asked, stages), progress=stages))
        return Found(tuple(found))
    with staged(models[0]) as stages:
        before = _prepared(models[0], asked, stages)
    with staged(models[1]) as stages:
        after = _prepared(models[1], asked, stages)
    reason = why_not(before.model, after.model)
    if reason is None:
        with staged("before and after") as stages:
            change = change_of(before, after, progress=stages)
        return Found((change.before, change.after), change)
    found = []
    for each in (before, after):
        with staged(each.name) as stages:
            found.append(diagnose_prepared(each, progress=stages))
    return Found(tuple(found), why_not=f"two models side by side, not one before and after: {reason}")


def _prepared(source: str, asked: Asked, stages: Stages) -> Prepared:
    from normlab.probes.inputs.sources import prepare

    if (Path(source) / "config.json").is_file():
        from normlab.surgery.classes import register as register_types

        register_types()  # the folder may hold a swapped model, whose type is ours
    stages("loading", 0, 0)
    return prepare(source, asked.material, asked.options)


def write(found: Found, out: Path, *, html: bool, csv: Path | None) -> None:
    from normlab.files import write_json, write_text
    from normlab.probes.diagnosis import table_csv
    from normlab.probes.show.page import build

    if csv is not None:
        write_text(csv, table_csv(found.diagnoses))
    write_json(out / "diagnosis.json", [d.to_dict() for d in found.diagnoses])
    if found.change is not None:
        found.change.to_json(out / "change.json")
    if html and found.change is not None:
        found.change.to_html(out / "report.html")
    elif html:
        build(found.diagnoses).write(out / "report.html")


def show(found: Found, *, json: bool) -> None:
    from normlab.probes.show import change as changes
    from normlab.probes.show.text import as_text, compare_text
    from normlab.report import print_json
    from normlab.report.terminal import columns

    if json:
        alone = found.diagnoses[0].to_dict()
        several = [d.to_dict() for d in found.diagnoses]
        print_json(found.change.to_dict() if found.change else several if len(several) > 1 else alone)
        return
    width = columns()
    if found.change is not None:
        typer.echo(changes.as_text(found.change, width=width))
        return
    for d in found.diagnoses:
        typer.echo(as_text(d, width=width) + "\n")
    if len(found.diagnoses) > 1:
        typer.echo(compare_text(found.diagnoses, width=width))
    if found.why_not:
        typer.echo("\n".join(textwrap.wrap(found.why_not, width)))


@contextmanager
def staged(name: str) -> Iterator[Stages]:
    stages = Stages(name)
    try:
        yield stages
    finally:
        stages.end()


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
