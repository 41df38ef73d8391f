"""Frozen, strict configuration: YAML and JSON round trip, dotted overrides, JSON Schema.

Every configuration of normlab is a `Config`. A bad one raises a single `ConfigError` that lists each fault with its
dotted path and, for an unknown key, the nearest valid one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import Self

from normlab.errors import ConfigError, InputError, nearest
from normlab.files import LIMITS, read_text


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads `1e-3` as a string; numbers here follow YAML 1.2 (and everybody's expectation).

    A key given twice is an error: the second would win in silence. Values are counted with every alias written out: a
    few lines of aliases to aliases are otherwise billions of values to whoever walks over them.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._count = 0
        self._sizes: dict[int, int] = {}  # of the values that an alias may name; one that is being read has none yet

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        before, alias = self._count, self.check_event(yaml.AliasEvent)
        self._count += 1
        node = super().compose_node(parent, index)
        if alias:
            self._count += self._sizes.get(id(node), LIMITS.yaml_values)
        else:
            self._sizes[id(node)] = self._count - before
        if self._count > LIMITS.yaml_values:
            many = f"it holds more than {LIMITS.yaml_values} values, with aliases written out"
            raise yaml.composer.ComposerError(None, None, many, node.start_mark if node else None)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = next((key for key, count in keys.items() if count > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def load_yaml(text: str, *, source: str = "the YAML text") -> Any:
    if len(text) > LIMITS.yaml_bytes:
        raise ConfigError(f"{source} is longer than the {LIMITS.yaml_bytes >> 20} MB that a configuration may have")
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source} is not valid YAML{where}: {getattr(error, 'problem', error)}") from None
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        # An impossible date, a number of thousands of digits, a tag that does not fit its value, endless nesting.
        raise ConfigError(f"{source} cannot be read as YAML: {error}") from None


class Config(BaseModel):
    """Base of all configurations."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False, protected_namespaces=()
    )
    what: ClassVar[str] = "configuration"

    def __init__(self, **values: object) -> None:
        try:
            text = json.dumps(values, allow_nan=False)
        except (TypeError, ValueError, RecursionError):  # configs inside, or something that is wrong anyway
            text = None
        try:
            # Strict JSON takes a list for a tuple, which files need; strict Python would not.
            if text is None:
                super().__init__(**values)
            else:
                self.__pydantic_validator__.validate_json(text, self_instance=self)
        except ValidationError as error:
            raise ConfigError(faults=describe(error, type(self))) from None

    @classmethod
    def model_validate(cls, obj: object, **options: Any) -> Self:
        """Pydantic's own entrance, with our error."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise ConfigError(faults=describe(error, cls)) from None

    # -- files and text ------------------------------------------------------------------------------------------
    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        if not all(isinstance(key, str) for key in values):
            raise ConfigError(
                f"the keys of a {cls.what} are words, but one is {next(k for k in values if type(k) is not str)!r}"
            )
        try:
            json.dumps(values)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"a {cls.what} holds plain values only: {error}") from None
        return cls(**values)

    @classmethod
    def from_yaml(cls, text: str, *, source: str = "the YAML text") -> Self:
        values = load_yaml(text, source=source)
        if not isinstance(values, dict):
            raise ConfigError(f"{source} should hold a mapping of {cls.what} keys, but holds {type(values).__name__}")
        return cls.from_dict(values)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a .yaml, .yml or .json file."""
        try:
            text = read_text(path, what=f"the {cls.what} file", most=LIMITS.yaml_bytes)
        except InputError as error:
            raise ConfigError(str(error)) from None
        return cls.from_yaml(text, source=str(path))  # JSON is YAML

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def to_json(self, *, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        return cls.model_json_schema()

    # -- changes ---------------------------------------------------------------------------------------------------
    def replace(self, **changes: object) -> Self:
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


def _assign(values: dict[str, object], key: str, value: object, what: str) -> None:
    *parents, leaf = key.split(".")
    if leaf == "name" and parents:  # another name is another section, whose options start anew
        leaf = parents.pop()
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


def describe(error: ValidationError, root: type[BaseModel]) -> list[tuple[str, str]]:
    """Pydantic's findings as (dotted path, sentence): what was given, what was expected, the nearest name."""
    faults: list[tuple[str, str]] = []
    for item in error.errors(include_url=False):
        path = ".".join(str(part) for part in item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError) and cause.faults:  # of a section: its paths continue ours
            faults += [(".".join(filter(None, (path, below))), text) for below, text in cause.faults]
        elif cause is not None:  # raised by our own validators, which write whole sentences
            faults.append((path, str(cause)))
        else:
            faults.append((path, _sentence(item, root)))
    return faults


def _sentence(item: ErrorDetails, root: type[BaseModel]) -> str:
    given, kind, context = item.get("input"), item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        valid = list(root.model_fields)
        close = nearest(str(item["loc"][-1]), valid)
        meant = f"; did you mean {close!r}?" if close else ""
        return f"unknown key of the {getattr(root, 'what', root.__name__)}{meant} (valid: {', '.join(valid)})"
    if kind == "missing":
        return "missing, and it has no default"
    if kind == "literal_error":
        valid = re.findall(r"'([^']*)'", context.get("expected", ""))
        close = nearest(given, valid) if isinstance(given, str) else None
        meant = f"; did you mean {close!r}?" if close else ""
        return f"{given!r} is not one of {context['expected']}{meant}"
    shown = repr(given) if len(repr(given)) < 80 else type(given).__name__
    return f"{item['msg'][0].lower()}{item['msg'][1:]}, but got {shown}"
