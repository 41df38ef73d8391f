"""A request as options of the command line, and back: flags, defaults and texts follow from its fields."""

from __future__ import annotations

import math
import shlex
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from normlab.errors import ConfigError, canonical
from normlab.experiments.request import Request, task_of, task_text
from normlab.numbers import real_numbers, whole_numbers

NONE = "none"


@dataclass(frozen=True)
class Flag:
    """One option: the field, its name on the command line, and what one types there."""

    field: str
    name: str
    help: str
    kind: type
    """int, float, bool or str: the type of the typed value; lists and tasks are texts."""
    default: object
    """As one would type it; None where leaving it out says more."""


def flags(request: type[Request]) -> Iterator[Flag]:
    """The options of a request, in the order of its fields."""
    for field, info in request.model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and "option" in extra:
            name = str(extra["option"]) or f"--{field.replace('_', '-')}"
            if info.default is True:
                name += f"/--no-{name[2:]}"
            kind, default = _typed(info), _default(info)
            yield Flag(field, name, info.description or "", kind, default)


def from_texts(request: type[Request], given: Mapping[str, object]) -> dict[str, object]:
    """What was typed, by field, as values of the request; what is None is left out."""
    names = {flag.field: flag.name for flag in flags(request)}
    found = {}
    for field, value in given.items():
        if value is not None:
            found[field] = _value(request.model_fields[field], value, names[field])
    return found


def make(request: type[Request], values: Mapping[str, object]) -> Request:
    """The request; where it is refused, the sentence names the command line's options."""
    try:
        return request(**values)
    except ConfigError as error:
        names = {flag.field: flag.name for flag in flags(request)}
        faults = []
        for path, text in error.faults:
            field, _, rest = path.partition(".")
            faults.append((".".join(filter(None, (names.get(field, field), rest))), text))
        raise ConfigError(str(error), faults=faults) from None


def command_line(request: Request, out: Path | None = None) -> str:
    """The command that asks for this; options that have their defaults are left out."""
    parts = ["normlab", request.kind]
    plain = {flag.field: flag for flag in flags(type(request))}
    for field, flag in plain.items():
        value = getattr(request, field)
        info = type(request).model_fields[field]
        if value != info.get_default(call_default_factory=True):
            if flag.kind is bool:
                parts.append(flag.name.partition("/")[0 if value else 2])
            else:
                parts += [flag.name, shlex.quote(_text(value))]
    modules = dict.fromkeys(origin.name for origin in request.external().values() if origin.kind == "module")
    parts += [word for module in modules for word in ("--import", shlex.quote(module))]
    return " ".join([*parts, *([] if out is None else ["--out", shlex.quote(str(out))])])


# -- one field ----------------------------------------------------------------------------------------------------------
def _parts(info: FieldInfo) -> tuple[object, ...]:
    """The members of a union, without None."""
    kind = info.annotation
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(member for member in typing.get_args(kind) if member is not type(None))
    return (kind,)


def _typed(info: FieldInfo) -> type:
    (kind, *_) = _parts(info)
    may_be_none = type(None) in typing.get_args(info.annotation)
    return kind if kind in (int, float, bool) and not (may_be_none and info.default is not None) else str


def _default(info: FieldInfo) -> object:
    if info.default_factory is not None:
        return None
    return info.default if info.default is None or _typed(info) is not str else _text(info.default)


def _value(info: FieldInfo, value: object, flag: str) -> object:
    (kind, *_) = _parts(info)
    if not isinstance(value, str):
        return value
    if typing.get_origin(kind) is tuple:
        return _list(value, typing.get_args(kind)[0], flag)
    if kind is Any:
        return task_of(value)
    if kind in (int, float):
        if canonical(value) == NONE:
            return None
        read = whole_numbers if kind is int else real_numbers
        numbers = read(value, option=flag)
        if len(numbers) != 1:
            raise ConfigError(f"{flag} takes one number, or {NONE!r}; {value!r} is not")
        return numbers[0]
    return canonical(value) if typing.get_origin(kind) is typing.Literal else value


def _list(text: str, kind: object, flag: str) -> tuple[object, ...]:
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    if inner is int:
        return whole_numbers(text, option=flag)
    if inner is float:
        return real_numbers(text, option=flag)
    if not text.strip():
        raise ConfigError(f"{flag} is empty; give one name or more, with commas")
    from normlab.schemes.names import split

    return tuple(split(text))


def _text(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, (tuple, list)):
        return ",".join(_text(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}" if math.isclose(float(f"{value:g}"), value, rel_tol=1e-12) else repr(value)
    return task_text(value) if hasattr(value, "vocab_size") else str(value)
