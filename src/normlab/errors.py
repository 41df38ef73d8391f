"""One exception tree. A message states what was given, what was expected, the nearest valid name and what to do."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable
from types import ModuleType


class NormlabError(Exception):
    """Base of everything that normlab raises on purpose; the CLI prints it as one sentence and exits with 2."""


class ConfigError(NormlabError, ValueError):
    """A configuration that is unknown, of the wrong type, or impossible.

    `faults` are (dotted path, sentence) pairs where there may be several; the text lists them all.
    """

    def __init__(self, text: str = "", *, faults: Iterable[tuple[str, str]] = ()) -> None:
        self.faults = tuple(faults)
        if self.faults:
            sentences = [f"{path}: {fault}" if path else fault for path, fault in self.faults]
            numbered = [f"({i}) {sentence}" for i, sentence in enumerate(sentences, 1)]
            text = sentences[0] if len(sentences) == 1 else "; ".join(numbered)
        super().__init__(text)


class InputError(NormlabError, ValueError):
    """Data that does not fit the model: tokens outside the vocabulary, a sequence that is too long, an empty file."""


class DamagedError(InputError):
    """A file that we wrote ourselves and that is not as we wrote it; the text names it and what to do."""


class UnsupportedError(NormlabError, NotImplementedError):
    """A question that has no answer for this scheme or model, with the reason."""


class MissingDependencyError(NormlabError, ImportError):
    """An optional package is needed; the message has the install command."""


class PageNotWritten(UserWarning):
    """Everything but the HTML page was written: a package that pages need is missing, and the message names it."""


class ContractError(NormlabError, AssertionError):
    """A scheme, metric or task breaks its contract (`normlab.testing`)."""


def canonical(name: str) -> str:
    """Names take dashes or underscores, in any case."""
    return name.strip().lower().replace("-", "_")


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that the given one most likely meant, or None."""
    names = {canonical(choice): choice for choice in valid}
    found = difflib.get_close_matches(canonical(name), names, n=1, cutoff=0.5)
    return names[found[0]] if found else None


def unknown(what: str, name: str, valid: Iterable[str], *, hint: str = "") -> str:
    """The sentence for a name that is not in a list."""
    choices = sorted(valid)
    close = nearest(name, choices)
    meant = f"; did you mean {close!r}?" if close else ""
    shown = ", ".join(choices) if len(choices) <= 12 else f"{len(choices)} names"
    return f"unknown {what} {name!r}{meant} (valid: {shown}{'; ' + hint if hint else ''})"


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name in (module, module.split(".")[0])
        raise _missing(module, extra, purpose, "" if absent else f" ({error})") from None


def need(*modules: str, extra: str, purpose: str) -> None:
    """Say before the work which package it needs. Nothing is imported: that may take seconds."""
    for module in modules:
        if not is_installed(module):
            raise _missing(module, extra, purpose)


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # the package above it is absent; or it is half imported
        return False


def _missing(module: str, extra: str, purpose: str, error: str = "") -> MissingDependencyError:
    state = f"does not import here{error}" if error else "is not installed"
    return MissingDependencyError(
        f"{purpose} needs the package {module.split('.')[0]!r}, which {state}; install it with: {install_command(extra)}"
    )


def install_command(extra: str) -> str:
    """What installs the packages of an extra, from normlab's own metadata. normlab itself is on no package index."""
    try:
        lines = importlib.metadata.requires("normlab") or []
    except importlib.metadata.PackageNotFoundError:  # used from its sources, not installed
        lines = []
    named = re.compile(rf"""\bextra\s*==\s*['"]{re.escape(extra)}['"]""")
    wanted = [line.partition(";") for line in lines]
    packages = [f'"{package.strip()}"' for package, _, marker in wanted if named.search(marker)]
    return " ".join(["pip install", *packages]) if packages else f'pip install -e ".[{extra}]" in a clone of normlab'
