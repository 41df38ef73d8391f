"""Tasks with their exact next-token law at every prefix (`TASKS`, `task`), and plain text."""

from __future__ import annotations

from collections.abc import Mapping

from normlab.errors import ConfigError, canonical, unknown
from normlab.tasks.automata import DEAD, Automaton
from normlab.tasks.base import IGNORE, Batch, Task
from normlab.tasks.languages import Dyck, Language, Tomita
from normlab.tasks.masked_text import MaskedText
from normlab.tasks.max_retrieval import MaxRetrieval
from normlab.tasks.set_complement import SetComplement
from normlab.tasks.text import Text

TASKS: dict[str, type[Task]] = {
    "set_complement": SetComplement,
    "max_retrieval": MaxRetrieval,
    "dyck": Dyck,
    "tomita": Tomita,
    "text": Text,
    "masked_text": MaskedText,
}


def task(name: str, **options: object) -> Task:
    """A task by name, for example `task("dyck", pairs=2, depth=3)`."""
    return from_dict({"task": name, **options})


def from_dict(values: Mapping[str, object]) -> Task:
    """A task from the plain values of its configuration; the key `task` says which."""
    name = canonical(str(values.get("task", "")))
    if name not in TASKS:
        raise ConfigError(unknown("task", str(values.get("task", "")), TASKS))
    return TASKS[name].from_dict({**values, "task": name})


__all__ = [
    "DEAD",
    "IGNORE",
    "TASKS",
    "Automaton",
    "Batch",
    "Dyck",
    "Language",
    "MaskedText",
    "MaxRetrieval",
    "SetComplement",
    "Task",
    "Text",
    "Tomita",
    "from_dict",
    "task",
]
