"""`normlab diagnose MODEL ...`: is the residual stream of this model healthy?"""

from __future__ import annotations

import inspect
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from normlab.cli._options import Device, Json, Out, pick_device
from normlab.cli._request import IMPORTS, Given, add_command, asked, parameter
from normlab.experiments.request import Request, option

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


class DiagnoseRequest(Request):
    """What is read, what is measured, and what is written beside the verdicts."""

    kind: ClassVar[str] = "diagnose"
    text: str | None = option(None, "A text file (its first 16 MB); else a public-domain sample serves.")
    tokens: str | None = option(None, "Token ids instead of text: a JSON list or numbers, at most 16 MB.")
    images: str | None = option(None, "A folder of images for a model that reads them; generated ones serve.")
    window: int | None = option(None, "Tokens in a window: 256, or what the model can read.", ge=4)
    windows: int | None = option(None, "How many windows or images: 8; 32 for encoders.", ge=1)
    loss: Literal["auto", "causal", "masked", "contrastive", "none"] = option(
        "auto", "auto, causal, masked, contrastive or none."
    )
    max_length: int = option(1024, "Longest text for attention against length.", ge=64)
    skips: bool = option(True, "Skip each layer and measure the loss.")
    max_seconds: float | None = option(
        None, "Then nothing optional begins (lengths, gradients, skips); says what is left out.", ge=1
    )
    html: bool = option(True, "Write report.html into the folder of --out.")
    csv: str | None = option(None, "Also write the layer table to this file.")
    strict: bool = option(False, "Exit with 1 if there is a fault or a warning; notes do not count.")
    allow_pickle: bool = option(False, "Load weights that are pickles. They can run code.")
    trust_remote_code: bool = option(False, "Run the model's own code. It can do anything.")
    seed: int = option(0, "Seed of every random draw.", ge=0, le=2**63 - 1)


def register(app: typer.Typer) -> None:
    more = [
        parameter("models", Models, inspect.Parameter.empty), parameter("out", Out, Path("runs/diagnose")),
        parameter("device", Device, "auto"), IMPORTS, parameter("json", Json, False),
    ]  # fmt: skip
    help = "Say whether a model is healthy, and what to try. One sentence, then verdicts, plots and numbers."
    add_command(app, DiagnoseRequest, diagnose, name="diagnose", help=help, more=more)


def diagnose(_: typer.Context, given: Given) -> None:
    request, out = asked(DiagnoseRequest, given), given.out
    assert isinstance(request, DiagnoseRequest)
    found = examine(given.models, _asked(request, pick_device(given.device)))
    page = write(found, out, html=request.html, csv=None if request.csv is None else Path(request.csv))
    show(found, json=given.json)
    if not given.json:
        typer.echo(f"\nfolder: {out}" if page is None else f"\npage: {page}")
    if request.strict and any(d.worst in ("bad", "warn") for d in found.diagnoses):
        raise typer.Exit(1)


def _asked(request: DiagnoseRequest, device: str) -> Asked:
    from normlab.errors import ConfigError
    from normlab.probes.inputs.request import DiagnoseOptions
    from normlab.probes.inputs.sources import Material
    from normlab.probes.inputs.texts import read_text, read_tokens

    text, tokens, images = (None if n is None else Path(n) for n in (request.text, request.tokens, request.images))
    if text is not None and tokens is not None:
        raise ConfigError("--text and --tokens both say what is read; give one of the two")
    material = Material(
        text=read_tokens(tokens) if tokens is not None else None if text is None else read_text(text),
        named=request.tokens or request.text,
        images=images,
        window=request.window,
        windows=request.windows,
        allow_pickle=request.allow_pickle,
        remote_code=request.trust_remote_code,
        device=device,
    )
    options = DiagnoseOptions(
        loss=request.loss, longest=request.max_length, skips=request.skips, seed=request.seed,
        max_seconds=request.max_seconds,
    )  # fmt: skip
    return Asked(material, options)


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


def examine(models: Sequence[str], asked: Asked) -> Found:
    from normlab.probes.change import change_of, why_not
    from normlab.probes.diagnose import diagnose_prepared
    from normlab.probes.inputs.sources import check_packages

    check_packages(models, asked.material)
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


def write(found: Found, out: Path, *, html: bool, csv: Path | None) -> Path | None:
    """Everything in files; returns the page, if one was wanted and could be drawn."""
    from normlab.files import write_json, write_text
    from normlab.probes.diagnosis import table_csv
    from normlab.probes.show import change, page
    from normlab.report import write_page

    if csv is not None:
        write_text(csv, table_csv(found.diagnoses))
    write_json(out / "diagnosis.json", [d.to_dict() for d in found.diagnoses])
    if found.change is not None:
        found.change.to_json(out / "change.json")
    if not html:
        return None
    drawn = page.build(found.diagnoses) if found.change is None else change.build(found.change)
    return write_page(drawn, out / "report.html")


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
