"""A result is a frozen dataclass inside and plain values at the edge: here is the edge.

A property that belongs into the file although it follows from the fields is named in the class' `derived`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, singledispatch
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from normlab.errors import InputError
from normlab.files import write_json

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
Type = TypeVar("Type")


def plain(value: object) -> Plain:
    """What JSON holds: dataclasses become dictionaries, and a float that is no number becomes None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "to_plain"):  # a dataclass whose file looks otherwise
        return plain(value.to_plain())
    if is_dataclass(value):
        names = [*(f.name for f in fields(value)), *getattr(value, "derived", ())]
        return {name: plain(getattr(value, name)) for name in names}
    if hasattr(value, "to_dict"):  # a configuration
        return plain(value.to_dict())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} is no plain value")


def as_row(value: object) -> dict[str, Plain]:
    """A dataclass as one line of a table."""
    found = plain(value)
    assert isinstance(found, dict)
    return found


def flat(value: object) -> dict[str, Plain]:
    """The same without what does not fit into a cell."""
    return {key: item for key, item in as_row(value).items() if not isinstance(item, (dict, list))}


def pick(kind: type[Type], values: object, *, source: str) -> Type:
    """The dataclass from what a file holds. Keys that it does not know are passed over, missing ones take its defaults."""
    if not isinstance(values, Mapping):
        raise InputError(f"{source} is damaged: a mapping was expected, and it holds {type(values).__name__}")
    names = _names(kind)  # type: ignore[arg-type]
    try:
        return kind(**{str(key): item for key, item in values.items() if key in names})
    except TypeError as error:
        raise InputError(f"{source} is damaged: {str(error).partition(') ')[2] or error}") from None


@cache
def _names(kind: type) -> frozenset[str]:
    """A log has a hundred thousand lines: a class is asked once."""
    return frozenset(f.name for f in fields(kind))


class Writable(Protocol):
    """A page."""

    def write(self, path: str | Path) -> Path: ...


@singledispatch
def page_of(result: object) -> Writable:
    """The page of a result. Each experiment's `page` module registers its own."""
    raise InputError(f"a {type(result).__name__} has no page")


class Result:
    """What an experiment returns. `schema` rises when a field changes its name or meaning."""

    schema: ClassVar[int] = 1
    kind: str

    def to_dict(self) -> dict[str, Plain]:
        return {"schema": self.schema, **as_row(self)}

    def to_json(self, path: str | Path) -> Path:
        return write_json(path, self.to_dict())

    def to_html(self, path: str | Path) -> Path:
        return page_of(self).write(path)
