"""The `normlab` command: one thin file per subcommand, found by itself.

A file in this folder that defines `register(app)` adds its command. Files import typer at the top and everything
heavy inside the function that runs, so that `normlab --help` never loads torch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.errors import NormlabError, PageNotWritten

INTERRUPTED = 130
_INTERRUPTED = "interrupted; what was finished is kept, and the same command goes on from there"
app = typer.Typer(
    name="normlab",
    help="Where norms go in a Transformer, and how a layer's output joins the residual stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        import normlab

        typer.echo(f"normlab {normlab.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Where norms go in a Transformer, and how a layer's output joins the residual stream."""


for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    importlib.import_module(f"{__name__}.{_module}").register(app)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: exits with 0 done, 1 a verdict or claim failed under `--strict`, 2 bad use."""
    share_the_cores()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def share_the_cores() -> None:
    """Threads for the cores that we may use, asleep while they wait: OpenMP reads this once, when torch loads.

    Waiting threads that spin take the cores from another command for longer than either computes. What the user has
    set stays.
    """
    from normlab.experiments.executors.protocol import cores

    os.environ.setdefault("OMP_NUM_THREADS", str(cores()))
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("KMP_BLOCKTIME", "0")  # LLVM's and Intel's runtimes go on spinning without it


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code. Bad input is one sentence on stderr, never a traceback."""
    try:
        with _pages_said_last():
            app(args=arguments, prog_name="normlab")
    except SystemExit as stop:  # typer reports wrong usage itself, and always leaves this way
        if stop.code == INTERRUPTED:  # Ctrl-C too, without a word
            typer.echo(_INTERRUPTED, err=True)
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except KeyboardInterrupt:
        typer.echo(_INTERRUPTED, err=True)
        return INTERRUPTED
    except BrokenPipeError:  # `normlab ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (NormlabError, OSError) as error:  # OSError: a full disk, a folder that may not be written
        _say(fitting(str(error), arguments))
        return 2
    except ValueError as error:
        if "null byte" not in str(error) and "null character" not in str(error):
            raise
        _say("a path holds a NUL character, which no file name can; check the options that name files and folders")
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        _say("this does not fit into memory; take a smaller model or shorter sequences")
        return 2
    return 0


@contextlib.contextmanager
def _pages_said_last() -> Iterator[None]:
    """What pages need and is not here is one line on stderr, after the answer."""
    missing: dict[str, None] = {}
    usual = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any, **of: Any
    ) -> None:
        if issubclass(category, PageNotWritten):
            missing[str(message)] = None
        else:
            usual(message, category, filename, lineno, *more, **of)

    with warnings.catch_warnings():
        warnings.simplefilter("always", PageNotWritten)
        warnings.showwarning = show  # type: ignore[assignment]
        try:
            yield
        finally:
            for sentence in missing:
                typer.echo(sentence, err=True)


def fitting(sentence: str, arguments: list[str]) -> str:
    """A sentence of a shared room without the advice that names an option of another command."""
    command: object = typer.main.get_command(app)
    known = _options(command)
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    foreign = known - _options(command)
    kept = []
    for clause in sentence.split("; "):
        parts = [part for part in clause.split(", or ") if not foreign & set(re.findall(r"--[a-z][a-z-]*", part))]
        if parts:
            kept.append(", or ".join(parts))
    return "; ".join(kept) or sentence


def _options(command: object) -> set[str]:
    """Of a command; of a group those of all that it holds."""
    parameters = getattr(command, "params", ())
    found = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    below = getattr(command, "commands", {}).values()
    return {name for name in found if name.startswith("--")}.union(*map(_options, below))


def _say(sentence: str) -> None:
    """On stderr. Under torchrun once a machine; torchrun ends with a long report of its own and repeats what it finds
    in the error file there."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        typer.echo(f"normlab: {sentence}", err=True)
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with contextlib.suppress(OSError):
            said = {"message": f"normlab: {sentence}", "extraInfo": {"timestamp": str(int(time.time()))}}
            Path(path).write_text(json.dumps({"message": said}))
