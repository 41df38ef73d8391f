"""How schemes are written, everywhere: on the command line, in YAML and in Python.

    pre_norm                                 a scheme; dashes are underscores
    block_attn_res(blocks=4, inner=peri_norm)  with options, whose values are read as YAML
    placement, multi-stream, ...             a family: all of its schemes
    all                                      every scheme

`label` writes a configuration back, with the options that are not defaults; `parse_scheme(label(config)) == config`.
`to_record` and `from_record` are the same for files, which also say where a scheme of somebody's own came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normlab import plugins
from normlab.config import load_yaml
from normlab.errors import ConfigError, canonical, nearest
from normlab.plugins import Origin
from normlab.schemes.base import SchemeConfig
from normlab.schemes.registry import EXTERNAL, SCHEMES, UnknownScheme, families, lookup, origin_of, unknown_scheme

ALL = "all"
_CLOSES = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class SchemeChoice:
    """One scheme that was asked for: how tables and folders call it, and what it is."""

    label: str
    config: SchemeConfig

    @property
    def name(self) -> str:
        return self.config.name


def scheme(name: str, **options: Any) -> SchemeConfig:
    """A scheme's configuration: `scheme("block_attn_res", blocks=8)` or `scheme("block_attn_res(blocks=8)")`."""
    if not isinstance(name, str) or "(" not in name:
        return lookup(name)(**options)
    config, written = _read(name)
    twice = sorted(written.keys() & options.keys())
    if twice:
        raise ConfigError(f"the option {twice[0]!r} of {name!r} is given twice, in the text and beside it")
    return config(**written, **options)


def parse_scheme(text: str | SchemeConfig) -> SchemeConfig:
    """`block_attn_res` or, with options, `block_attn_res(blocks=4, inner=peri_norm)`."""
    if isinstance(text, SchemeConfig):
        return text
    if plugins.lenient() and canonical(name := _match(text)[1]) not in SCHEMES and _group(name) is None:
        return _unknown({"name": canonical(name), EXTERNAL: {"label": text.strip()}})
    config, options = _read(text)
    try:
        return config.from_dict({"name": config.model_fields["name"].default, **options})
    except ConfigError as error:
        raise ConfigError(f"{text.strip()!r}: {error}") from None


def parse_schemes(given: str | Sequence[str | SchemeConfig], *, option: str = "schemes") -> tuple[SchemeChoice, ...]:
    """Every scheme of a comma-separated text or of a list, once each and in order; families and `all` are spread.

    A scheme that is named twice is an error; one that a family brings again is not.
    """
    parts = list(split(given)) if isinstance(given, str) else list(given)
    if not parts:
        raise ConfigError(f"{option}: give at least one scheme, for example pre_norm,block_attn_res(blocks=4), or all")
    found: dict[str, SchemeChoice] = {}
    named: set[str] = set()
    for part in parts:
        group = None if isinstance(part, SchemeConfig) else _group(part)
        for config in [parse_scheme(part)] if group is None else [_default(name) for name in group]:
            written = label(config)
            if group is None and written in named:
                raise ConfigError(f"{option}: the scheme {written!r} is given twice")
            if group is None:
                named.add(written)
            found.setdefault(written, SchemeChoice(written, config))
    return tuple(found.values())


def label(scheme: SchemeConfig) -> str:
    """The scheme's name, with the options that are not its defaults."""
    if isinstance(scheme, UnknownScheme):
        return scheme.label
    plain = _default(scheme.name).to_dict()
    changed = [f"{k}={v}" for k, v in scheme.to_dict().items() if k != "name" and v != plain[k]]
    return f"{scheme.name}({', '.join(changed)})" if changed else scheme.name


def to_record(scheme: SchemeConfig) -> dict[str, Any]:
    """As files hold it. The module of one that is not built in is there for error messages: nobody imports it from here."""
    if isinstance(scheme, UnknownScheme):
        return dict(scheme.record)
    values, origin = scheme.to_dict(), origin_of(type(scheme))
    return values if origin is None else {**values, EXTERNAL: {**origin.to_dict(), "label": label(scheme)}}


def from_record(values: Mapping[str, Any]) -> SchemeConfig:
    """A scheme by its name and options; one that nobody registered is refused, or kept as the record that it is."""
    name = values.get("name")
    if not isinstance(name, str):
        raise ConfigError("a scheme section needs a `name`, for example {name: pre_norm}")
    options = {key: value for key, value in values.items() if key not in ("name", EXTERNAL)}
    if "(" in name:  # `scheme=block_attn_res(blocks=2)` and then `scheme.heads=2`
        return scheme(name, **options)
    if canonical(name) in SCHEMES:
        config = lookup(name)
        return config.from_dict({"name": config.model_fields["name"].default, **options})
    if plugins.lenient():
        return _unknown(values)
    origin = Origin.from_record(values.get(EXTERNAL)) or plugins.recorded(canonical(name))
    raise ConfigError(unknown_scheme(name, origin))


def _unknown(record: Mapping[str, Any]) -> UnknownScheme:
    return UnknownScheme.from_dict({"name": canonical(record["name"]), "record": dict(record)})


def split(text: str) -> Iterator[str]:
    """The parts of a text between commas that stand outside of brackets and quotes; empty parts are left out."""
    open_: list[str] = []
    quote, start = "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            open_.append(sign)
        elif sign in _CLOSES and (not open_ or open_.pop() != _CLOSES[sign]):
            raise ConfigError(
                f"the bracket {sign!r} in {text!r} closes nothing; a scheme is written name(option=value)"
            )
        elif sign == "," and not open_:
            if part := text[start:at].strip():
                yield part
            start = at + 1
    if open_ or quote:
        raise ConfigError(f"{(quote or open_[-1])!r} in {text!r} is not closed; a scheme is written name(option=value)")
    if part := text[start:].strip():
        yield part


def _default(name: str) -> SchemeConfig:
    return lookup(name)()  # type: ignore[call-arg]  # registered classes have a default name


def _group(text: str) -> tuple[str, ...] | None:
    """The schemes that a word stands for, where it is not a scheme itself."""
    word = canonical(text)
    if word in SCHEMES:
        return None
    if word == ALL:
        return tuple(SCHEMES)
    return next((names for family, names in families().items() if canonical(family) == word), None)


def _read(text: str) -> tuple[type[SchemeConfig], dict[str, Any]]:
    """The class and the written options, which are known to be options of it."""
    match = _match(text)
    config = _lookup(match[1])
    options: dict[str, Any] = {}
    for item in split(match[2] or ""):
        key, sign, value = (part.strip() for part in item.partition("="))
        if not sign or not key:
            raise ConfigError(
                f"an option of a scheme is written key=value, for example blocks=4; {item!r} in {text.strip()!r} is not"
            )
        if key in options:
            raise ConfigError(f"the option {key!r} is given twice in {text.strip()!r}")
        _check_option(config, key, text.strip())
        # Labels are written by Python, whose None is YAML's null.
        options[key] = None if value == "None" else load_yaml(value, source=f"the value of {key!r}")
    return config, options


def _match(text: str) -> re.Match[str]:
    if not isinstance(text, str):
        raise ConfigError(f"a scheme is named by a text, for example 'pre_norm', but got {text!r}")
    match = re.fullmatch(r"\s*([^()\s,=]+)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if match is None:
        raise ConfigError(f"a scheme is written name or name(option=value, ...); {text!r} is neither")
    return match


def _lookup(name: str) -> type[SchemeConfig]:
    """As the registry does, but a family or `all` where one scheme is meant gets its own sentence."""
    group = _group(name)
    if group is None:
        if canonical(name) in SCHEMES or plugins.recorded(canonical(name)):
            return lookup(name)
        groups = [ALL, *families()]
        if nearest(name, [*groups, *SCHEMES]) not in groups:
            return lookup(name)
        raise ConfigError(
            f"unknown scheme {name!r}; did you mean the family {nearest(name, groups)!r}? (valid: {len(SCHEMES)} names, "
            f"which `normlab schemes` lists; in a list of schemes also {', '.join(groups)})"
        )
    raise ConfigError(f"{name!r} stands for {len(group)} schemes where one is meant; give one of {', '.join(group)}")


def _check_option(config: type[SchemeConfig], key: str, text: str) -> None:
    valid = [name for name in config.model_fields if name != "name"]
    if key in valid:
        return
    close = nearest(key, valid)
    meant = f"; did you mean {close!r}?" if close else ""
    which = f"its options: {', '.join(valid)}" if valid else "it has none"
    name = config.model_fields["name"].default
    raise ConfigError(f"{name} has no option {key!r}, which {text!r} gives{meant} ({which})")
