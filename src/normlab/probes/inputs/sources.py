"""From a name to something that can be measured: the model, batches of text or images for it, and how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from normlab.errors import InputError, UnsupportedError, need
from normlab.probes.inputs import hub, images
from normlab.probes.inputs.hub import Loaded, load
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.inputs.runs import is_run, load_run
from normlab.probes.inputs.texts import frame, position_limit, read_text, tokenize, windows

SAMPLE = "the sample of the package (The Devil's Dictionary, 1911)"
WINDOW = 256


@dataclass(frozen=True)
class Material:
    """What models are shown, and how they are loaded.

    Without a text, a run of ours reads what was held out of its own, any other model the sample of the package.
    """

    text: str | Tensor | None = None
    named: str | None = None  # where the text comes from
    images: Path | None = None
    window: int | None = None  # tokens; None: 256, or what the model can read or was trained on
    windows: int | None = None  # how many; None: 8, or 32 for encoders and images
    allow_pickle: bool = False
    remote_code: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class Prepared:
    """A model with its batches; `options` know its mask token."""

    name: str
    model: nn.Module
    batches: list[object]
    options: DiagnoseOptions
    notes: tuple[str, ...]
    text: str | None = None
    images: str | None = None


def open_source(source: str, material: Material) -> Loaded:
    """A run of ours, or whatever `hub.load` knows."""
    if is_run(source):
        return load_run(source)
    return load(source, allow_pickle=material.allow_pickle, remote_code=material.remote_code)


def check_packages(sources: Sequence[str], material: Material) -> None:
    """Say which Python package is missing before the first of these models is measured."""
    for source in sources:
        if not is_run(source):
            hub.check_packages(source)
    if material.images is not None:
        need("PIL", extra="images", purpose="--images")


def prepare(source: str, material: Material, options: DiagnoseOptions) -> Prepared:
    """Load a model and cut batches for it."""
    loaded = open_source(source, material)
    reads, tokenizer = getattr(loaded.model, "main_input_name", None), loaded.tokenizer
    text = shown = None
    if reads == "pixel_values":
        rows, shown = _images(loaded, source, material, seed=options.seed)
    else:
        ids, text = _read(loaded, material)
        rows = _windows(loaded, material, ids)
        special = tuple(getattr(tokenizer, "all_special_ids", ()))
        options = replace(options, mask_id=getattr(tokenizer, "mask_token_id", None), special_ids=special)
    parts = [part.to(material.device) for part in torch.split(rows, 8)]
    # transformers' models want names, ours a tensor.
    batches: list[object] = [{reads: part} for part in parts] if reads else list(parts)
    model = loaded.model.to(material.device)
    return Prepared(loaded.name, model, batches, options, tuple(loaded.notes), text, shown)


def _read(loaded: Loaded, material: Material) -> tuple[str | Tensor, str]:
    """(a text or its token ids, where it comes from)"""
    if material.text is not None:
        return material.text, material.named or "a text that was given"
    own = loaded.own_text()
    return (read_text(None), SAMPLE) if own is None else (own.ids, own.named)


def _windows(loaded: Loaded, material: Material, given: str | Tensor) -> Tensor:
    reads = getattr(loaded.model, "main_input_name", "input_ids")
    if reads != "input_ids":
        raise UnsupportedError(
            f"{loaded.name} reads {reads}, neither text nor images; call nl.diagnose(model, batches) in Python"
        )
    if material.images is not None:
        raise InputError(f"--images was given, but {loaded.name} reads text; leave it out")
    ids = given if isinstance(given, Tensor) else tokenize(loaded, given)
    # Without a head the loss compares windows with each other, and a masked one counts a seventh of the tokens.
    encoder = type(loaded.model).__name__.endswith(("Model", "ForMaskedLM"))
    usual = min(WINDOW, position_limit(loaded.model) or WINDOW)
    length = material.window or min(usual, loaded.window or usual)
    count = material.windows or (32 if encoder else 8 * max(1, usual // length if loaded.window else 1))
    return windows(ids, length=length, count=count, model=loaded.model, name=loaded.name, framing=frame(loaded))


def _images(loaded: Loaded, source: str, material: Material, *, seed: int) -> tuple[Tensor, str]:
    shape, scale, count = images.size_of(loaded.model), images.scaling(source), material.windows or 32
    if material.images is not None:
        return images.read_images(material.images, shape, count=count, scale=scale), str(material.images)
    loaded.notes.append("the images are generated, not photographs: pass --images FOLDER for numbers on real ones")
    return images.sample_images(shape, count=count, seed=seed, scale=scale), "generated colour fields with discs"
