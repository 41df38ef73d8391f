"""Modules with schemes of somebody's own: what is imported, and what is only recorded.

Two things import such code, and nothing else does: `--import MODULE` (in Python `imports=[...]`), and the entry points of
installed packages in the group `normlab.schemes`, when a scheme is looked up that is not built in or all are listed. A
configuration on disk records where its scheme came from, for its error message; nothing is imported because of that.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Literal

from typing_extensions import Self

from normlab.errors import InputError, NormlabError, nearest

GROUP = "normlab.schemes"
HINT = "`normlab schemes` lists them; one of your own needs --import MODULE, or imports=[...] in Python"


@dataclass(frozen=True)
class Origin:
    """Where a scheme of somebody's own comes from: a module, or an installed package."""

    kind: Literal["module", "package"]
    name: str

    @property
    def remedy(self) -> str:
        if self.kind == "package":
            return f"it comes from the package {self.name!r}; install that"
        if self.name == "__main__":
            return "it was registered by a script itself; put it into a module of its own, and give that with --import"
        return f"it comes from the module {self.name!r}; give --import {self.name}, in Python imports=[{self.name!r}]"

    def to_dict(self) -> dict[str, str]:
        return {self.kind: self.name}

    @classmethod
    def from_record(cls, record: object) -> Self | None:
        """What a configuration says; None where it says nothing that can be used."""
        for kind in ("module", "package"):
            name = record.get(kind) if isinstance(record, Mapping) else None
            if isinstance(name, str) and re.fullmatch(r"[\w./\\ :~-]{1,300}", name):
                return cls(kind, name)  # type: ignore[arg-type]
        return None


@dataclass(frozen=True)
class Imported:
    """A module that `--import` named: as it was written, as Python calls it, and the file or folder of its outermost part."""

    written: str
    module: str
    path: Path | None


_IMPORTED: dict[str, Imported] = {}  # by the module's name
_RECORDED: dict[str, Origin] = {}  # scheme -> its origin, as a sweep on disk recorded it: for error messages
_broken: list[str] | None = (
    None  # a sentence for each entry point that could not be loaded; None: nobody has looked yet
)
_loading: ContextVar[Origin | None] = ContextVar("loading", default=None)
_lenient: ContextVar[bool] = ContextVar("lenient", default=False)
_closed: ContextVar[bool] = ContextVar("closed", default=False)


# -- by name or path ----------------------------------------------------------------------------------------------------
def import_modules(names: Sequence[str]) -> tuple[Imported, ...]:
    """Import modules by their names, or by the paths of their .py files; what is imported already stays as it is."""
    return tuple(_import(name) for name in names)


def _import(written: str) -> Imported:
    module = _module_of_file(written) if _is_path(written) else _module_named(written)
    if module not in _IMPORTED or module not in sys.modules:
        with _from(Origin("module", written)):
            try:
                loaded = importlib.import_module(module)
            except (Exception, SystemExit) as error:
                raise InputError(f"{written!r} could not be imported: {_cause(error)}") from None
        outermost = sys.modules[module.partition(".")[0]] if "." in module else loaded
        file = getattr(outermost, "__file__", None)
        whole = list(getattr(outermost, "__path__", ())) or [file]
        _IMPORTED[module] = Imported(written, module, None if whole[0] is None else Path(whole[0]).resolve())
    return _IMPORTED[module]


def _is_path(written: str) -> bool:
    return written.endswith(".py") or "/" in written or os.sep in written


def _module_named(name: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        raise InputError(f"--import takes the name of a module, or the path of a .py file; {name!r} is neither")
    outermost = name.partition(".")[0]
    importlib.invalidate_caches()  # a notebook may just have written it
    if _find(outermost) is None:
        folder = str(Path.cwd())
        # At the end: a file of the working directory must not stand in for a module of Python's or of a library's.
        if folder not in sys.path:
            sys.path.append(folder)
        if _find(outermost) is None:
            close = nearest(outermost, [file.stem for file in Path(folder).glob("*.py") if file.stem.isidentifier()])
            meant = f"; did you mean {close!r}?" if close else ""
            raise InputError(
                f"there is no module {outermost!r} among the installed ones or in {folder!r}{meant}; give its name from "
                "the folder that holds it, or the path of its .py file"
            )
    return name


def _module_of_file(written: str) -> str:
    """The file's folder joins the path of modules, at its end, so that workers find it by its name too."""
    file = Path(written).expanduser().resolve()
    if not file.is_file() or file.suffix != ".py":
        what = "is no .py file" if file.exists() else "does not exist"
        raise InputError(f"--import {written!r} {what}; give the path of a .py file, or the name of a module")
    if not file.stem.isidentifier():
        raise InputError(f"--import {written!r} cannot be a module's name; rename the file, with letters, digits and _")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
        importlib.invalidate_caches()
    taken = _find(file.stem)
    if taken is None or not Path(taken).exists() or not Path(taken).samefile(file):
        raise InputError(
            f"--import {written!r}: another module is called {file.stem!r} already ({taken or 'unknown'}); rename the file"
        )
    return file.stem


def _find(module: str) -> str | None:
    """The file of an outermost module, or a word for it where it has none; None where there is no such module."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None) or "built in"
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin or "a folder without __init__.py"


def _cause(error: BaseException) -> str:
    """What was raised, and where in the module: its author has to find the line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{'' if isinstance(error, NormlabError) else type(error).__name__ + ': '}{error}{where}"


# -- by entry point -----------------------------------------------------------------------------------------------------
def installed() -> tuple[EntryPoint, ...]:
    """The entry points of installed packages. Looking imports nothing."""
    return tuple(entry_points(group=GROUP))


def anything() -> bool:
    """Can there be a scheme that is not built in?"""
    return bool(_IMPORTED or installed())


def load_installed(take: Callable[[object], None]) -> None:
    """Load each entry point, the first time. One that fails is a sentence of `broken`, and the others go on."""
    global _broken
    if _broken is not None or _closed.get():
        return
    _broken = []
    for entry in installed():
        package = entry.dist.name if entry.dist is not None else entry.value
        with _from(Origin("package", package)):
            try:
                take(entry.load())
            except (Exception, SystemExit) as error:
                _broken.append(
                    f"the plug-in {entry.name!r} of the package {package!r} could not be loaded: {_cause(error)}"
                )


def broken() -> tuple[str, ...]:
    """What could not be loaded, and why."""
    return tuple(_broken or ())


# -- where a scheme comes from ------------------------------------------------------------------------------------------
@contextmanager
def _from(origin: Origin) -> Iterator[None]:
    token = _loading.set(origin)
    try:
        yield
    finally:
        _loading.reset(token)


def loading() -> Origin | None:
    """On whose behalf a module is being imported right now."""
    return _loading.get()


def origin_of_module(module: str) -> Origin:
    """Of a module that Python has imported by itself: as `--import` named it, where it did."""
    owner = next((m for m in _IMPORTED if module == m or module.startswith(f"{m}.")), None)
    return Origin("module", module if owner is None else _IMPORTED[owner].written)


def remember(origins: Mapping[str, object]) -> None:
    """What a sweep on disk recorded of its schemes: only error messages use it."""
    for scheme, record in origins.items():
        if (origin := Origin.from_record(record)) is not None:
            _RECORDED[scheme] = origin


def recorded(scheme: str) -> Origin | None:
    return _RECORDED.get(scheme)


# -- reading what others made -------------------------------------------------------------------------------------------
@contextmanager
def records(*, plugins: bool = True) -> Iterator[None]:
    """Inside, a scheme that nobody registered is read as what its record says of it; it can be named, and not built.

    Without `plugins`, entry points are not loaded either: `normlab report` and `normlab watch` import nothing.
    """
    lenient, closed = _lenient.set(True), _closed.set(_closed.get() or not plugins)
    try:
        yield
    finally:
        _lenient.reset(lenient)
        _closed.reset(closed)


def lenient() -> bool:
    return _lenient.get()
