"""Options that every command shares, spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Machine-readable result on stdout, nothing else there.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for what is written.", file_okay=False)]
Seed = Annotated[int, typer.Option("--seed", help="Seed of every random draw.", min=0, max=2**63 - 1)]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]


def _moved(value: str | None) -> None:
    from normlab.errors import ConfigError

    if value is not None:
        raise ConfigError(f"--scheme is called --schemes in every command: give --schemes {value!r}")


OldScheme = Annotated[str | None, typer.Option("--scheme", hidden=True, callback=_moved)]
"""The spelling that some commands had; it answers with the one they have."""


def pick_device(name: str) -> str:
    """`auto` takes an accelerator where there is one; a device that is absent is an error, not a fallback."""
    import torch

    from normlab.errors import ConfigError, unknown

    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.split(":")[0]
    if kind == "auto":
        return next((k for k in ("cuda", "mps") if present[k]), "cpu")
    if kind not in present:
        raise ConfigError(unknown("device", name, ["auto", *present]))
    if not present[kind]:
        raise ConfigError(f"the device {name!r} is not available here; use --device auto or cpu")
    return name
