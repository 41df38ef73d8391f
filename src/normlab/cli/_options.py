"""Options that every command shares, spelled once."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer


def writable(out: Path | None) -> Path | None:
    """Asked before the work: an hour of training is not lost to a folder that cannot be written. Leaves nothing behind."""
    from tempfile import TemporaryFile

    from normlab.errors import InputError

    if out is None:
        return None
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"nothing can be written to --out {str(out)!r} ({reason}); name a folder of yours") from None
    finally:
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
    return out


def there(paths: Path | list[Path]) -> Path | list[Path]:
    """A misspelt name is answered before anything heavy is loaded, with the nearest one that exists."""
    from normlab.errors import InputError, nearest

    for path in paths if isinstance(paths, list) else [paths]:
        if not path.exists():
            beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            close = nearest(path.name, [name for name in beside if not name.startswith(".")])
            meant = f"; did you mean {str(path.parent / close)!r}?" if close else ""
            raise InputError(f"there is no file or folder {str(path)!r}{meant}")
    return paths


def _import(modules: list[str] | None) -> list[str] | None:
    """The one place where the command line imports code of a user's: before anything reads the name of a scheme."""
    from normlab.plugins import import_modules

    import_modules(modules or ())
    return modules


Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="MODULE", callback=_import,
        help="A module with schemes of your own, by its name or its .py file; may be given again. Its code is run.",
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Machine-readable result on stdout, nothing else there.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for what is written.", callback=writable)]
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
