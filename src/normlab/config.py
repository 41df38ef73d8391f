"""Frozen, strict configuration: YAML and JSON round trip, dotted overrides, JSON Schema.

Every configuration of normlab is a `Config`. A bad one raises a single `ConfigError` that lists each fault with its
dotted path and, for an unknown key, the nearest valid one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

from normlab.errors import ConfigError, nearest


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads `1e-3` as a string; numbers here follow YAML 1.2 (and everybody's expectation)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def load_yaml(text: str, *, source: str = "the YAML text") -> Any:
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source} is not valid YAML{where}: {getattr(error, 'problem', error)}") from None


class Config(BaseModel):
    """Base of all configurations."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, protected_namespaces=(), use_enum_values=True
    )
    what: ClassVar[str] = "configuration"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(describe(error, type(self))) from None

    # Without this mark pydantic builds nested configs through `__init__`, which is not JSON mode: their tuples, read as
    # lists from a file, would be refused, and their faults would lose the dotted path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    # -- files and text ------------------------------------------------------------------------------------------
    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        try:
            # JSON mode lets lists become tuples while staying strict about everything else.
            return cls.model_validate_json(json.dumps(values))
        except ValidationError as error:
            raise ConfigError(describe(error, cls)) from None
        except TypeError as error:
            raise ConfigError(f"a {cls.what} holds plain values only: {error}") from None

    @classmethod
    def from_yaml(cls, text: str, *, source: str = "the YAML text") -> Self:
        values = load_yaml(text, source=source)
        if not isinstance(values, dict):
            raise ConfigError(f"{source} should hold a mapping of {cls.what} keys, but holds {type(values).__name__}")
        return cls.from_dict(values)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a .yaml, .yml or .json file."""
        path = Path(path)
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the {cls.what} file {str(path)!r}: {error}") from None
        return cls.from_yaml(text, source=str(path))  # JSON is YAML

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def to_json(self, *, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return cls.model_json_schema()

    # -- changes ---------------------------------------------------------------------------------------------------
    def replace(self, **changes: Any) -> Self:
        """A validated copy with some top-level fields changed."""
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**kept, **changes})

    def override(self, assignments: Iterable[str]) -> Self:
        """Apply `key=value` texts, in order; keys are dotted paths, values are read as YAML."""
        values = self.to_dict()
        for assignment in assignments:
            key, sign, text = assignment.partition("=")
            if not sign or not key.strip():
                raise ConfigError(f"an override is written key=value, for example depth=12; {assignment!r} is not")
            _assign(values, key.strip(), load_yaml(text, source=f"the value of {key.strip()!r}"), self.what)
        return type(self).from_dict(values)


class Named(str):
    """The name that stands for a whole section."""


def _assign(values: dict[str, Any], key: str, value: Any, what: str) -> None:
    *parents, leaf = key.split(".")
    for depth, name in enumerate(parents):
        below = values.get(name)
        if isinstance(below, Named):  # `scheme=attn_res` and then `scheme.heads=2`: a section given by its name
            below = values[name] = {"name": str(below)}
        if not isinstance(below, dict):
            path = ".".join(parents[: depth + 1])
            close = nearest(name, [k for k, v in values.items() if isinstance(v, dict)])
            hint = f"; did you mean {close!r}?" if close and close != name else ""
            raise ConfigError(f"{key!r} cannot be set: {path!r} is not a section of the {what}{hint}")
        values = below
    was_section = isinstance(values.get(leaf), (dict, Named))
    values[leaf] = Named(value) if was_section and isinstance(value, str) else value


def describe(error: ValidationError, root: type[BaseModel]) -> str:
    """Pydantic's findings as one sentence each: dotted path, what was given, what was expected, the nearest name."""
    faults = [_fault(item, root) for item in error.errors(include_url=False)]
    return faults[0] if len(faults) == 1 else "; ".join(f"({i}) {fault}" for i, fault in enumerate(faults, 1))


def _fault(item: Any, root: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in item["loc"])
    given, kind, context = item.get("input"), item["type"], item.get("ctx", {})
    what = getattr(root, "what", root.__name__)
    if kind == "extra_forbidden":
        valid = _fields_at(root, item["loc"][:-1])
        name = str(item["loc"][-1])
        close = nearest(name, valid)
        meant = f"; did you mean {close!r}?" if close else ""
        return f"{path}: unknown key of the {what}{meant} (valid: {', '.join(valid)})"
    if kind == "missing":
        return f"{path}: missing, and it has no default"
    if kind == "literal_error":
        valid = re.findall(r"'([^']*)'", context.get("expected", ""))
        close = nearest(str(given), valid) if isinstance(given, str) else None
        meant = f"; did you mean {close!r}?" if close else ""
        return f"{path}: {given!r} is not one of {context['expected']}{meant}"
    if kind == "value_error":  # raised by our own validators, which write whole sentences
        text = str(context["error"])
        return f"{path}: {text}" if path else text
    shown = repr(given) if len(repr(given)) < 80 else type(given).__name__
    message = item["msg"][0].lower() + item["msg"][1:]
    return f"{path}: {message}, but got {shown}"


def _fields_at(root: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    model: Any = root
    for part in loc:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        annotation = field.annotation if field else None
        nested = [t for t in (annotation, *get_args(annotation)) if isinstance(t, type) and issubclass(t, BaseModel)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)
