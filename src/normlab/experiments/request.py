"""What is asked of an experiment: a frozen `Request`. The command line's options, and the command that a page prints, are
made from its fields, so each option is declared once.

Nothing here, nor in a module that only declares a request, imports torch: `normlab compare --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic.config import JsonDict
from typing_extensions import Self

from normlab.config import Config, load_yaml
from normlab.errors import ConfigError, InputError

if TYPE_CHECKING:
    from normlab.plugins import Origin
    from normlab.tasks import Task as AnyTask
else:

    def _task(value: object) -> object:
        from normlab.tasks import Task, from_dict

        if isinstance(value, str):
            return task_of(value)
        if isinstance(value, dict):
            return from_dict(value)
        if not isinstance(value, Task):
            raise ValueError(f"a task is a name, a text file, or its options, but got {type(value).__name__}")
        return value

    AnyTask = Annotated[Any, BeforeValidator(_task), PlainSerializer(lambda task: task.to_dict())]


def option(default: Any, help: str, *, flag: str | None = None, **limits: Any) -> Any:
    """A field that is an option of the command line. `flag`: its name there, where that is not the field's."""
    extra: JsonDict = {"option": flag or ""}
    if callable(default):
        return Field(default_factory=default, description=help, json_schema_extra=extra, **limits)
    return Field(default=default, description=help, json_schema_extra=extra, **limits)


def shipped_text() -> AnyTask:
    from normlab.tasks import Text

    return Text()


Start = Literal["fair", "old"]
"""How the models of a sweep begin. `old`: each as its authors begin it and otherwise with 0.02, as all did until
2026-11-19; stored sweeps and the ledger's presets keep it, so that their numbers can be made again."""


class Request(Config):
    """Base of every request. In the fields that it `grows` by, a folder may be asked for more than it holds."""

    kind: ClassVar[str]
    grows: ClassVar[tuple[str, ...]] = ()
    keeps_most: ClassVar[tuple[str, ...]] = ()
    """Fields in which a folder keeps the largest value that it was ever asked for."""

    @classmethod
    def stored(cls, values: Mapping[str, object]) -> Self:
        """A request as a folder holds it. One that does not say how its models begin is of the old start."""
        return cls.from_dict({"start": "old", **values} if "start" in cls.model_fields else values)

    def check(self) -> Self:
        """Raise for what can be known to fail before anything is written."""
        return self

    def files(self) -> dict[str, str]:
        """The data files behind it, with their digests."""
        task = getattr(self, "task", None)
        return {} if task is None else dict(task.files())

    def external(self) -> dict[str, Origin]:
        """Its schemes that are not built in, and where they come from."""
        schemes = [label.partition("(")[0] for label in getattr(self, "schemes", ())]
        if not schemes:
            return {}
        from normlab.schemes.registry import origins

        return origins(schemes)


def task_of(text: str | None) -> AnyTask:
    """A file is text; anything else is a task's name, with its options in brackets: dyck(pairs=2)."""
    from normlab.tasks import TASKS, Text, task

    if text is None:
        return Text()
    if Path(text).is_file():
        found = Text(path=str(Path(text).resolve()))
        found.check(1, 1)  # reads it: a file that is no text is known now
        return found
    name, _, rest = text.rstrip(")").partition("(")
    if name.replace("-", "_") not in TASKS and ("." in text or "/" in text):
        what = "is a folder" if Path(text).is_dir() else "does not exist"
        raise InputError(f"the data file {text!r} {what}; give a text file, or a task: {', '.join(TASKS)}")
    return task(name, **assignments([part for part in rest.split(",") if part.strip()], source=f"the task {text!r}"))


def task_text(task: AnyTask) -> str:
    """The words that `task_of` makes this task from."""
    values = task.to_dict()
    path = values.get("path")
    if path and type(task).from_dict({"task": task.name, "path": path}) == task:
        return str(path)
    plain = type(task)().to_dict()
    changed = [f"{key}={value}" for key, value in values.items() if key != "task" and value != plain.get(key)]
    return f"{task.name}({', '.join(changed)})" if changed else task.name


def assignments(pairs: Iterable[str], *, source: str) -> dict[str, object]:
    """`key=value` texts; values are read as YAML."""
    found: dict[str, object] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise ConfigError(f"{source} takes key=value, for example vocab=64; {pair!r} is not")
        found[key.strip()] = load_yaml(value, source=f"{source}, {key.strip()!r}")
    return found


__all__ = ["AnyTask", "Request", "Start", "assignments", "option", "shipped_text", "task_of", "task_text"]
