"""Which rows of the table of fields a text asks for: the syntax of `schemes.names`, over what the sphere dynamics cover.

peri_norm, peri, sandwich        a row, by its name or another that is in use
mix_norm(tau=3), ngpt(alpha=0.5)   with the row's own options (see `scheme_field`)
paper                            the six of arXiv 2510.22026
all, placement                   every row, or those of a family
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from normlab.config import load_yaml
from normlab.dynamics.fields import FIELDS, PAPER_SIX, Field, field_name, scheme_field
from normlab.errors import ConfigError, canonical
from normlab.schemes import families
from normlab.schemes.names import split

_OPTIONS = [name for name in inspect.signature(scheme_field).parameters if name != "name"]


def parse_fields(given: str | Sequence[str], *, option: str = "--schemes") -> list[Field]:
    """Each row once for each way it is asked for, in order."""
    parts = list(split(given)) if isinstance(given, str) else list(given)
    found: list[Field] = []
    for part in parts:
        group = _group(part)
        new = [parse_field(part)] if group is None else [FIELDS[name] for name in group]
        found += [row for row in new if row not in found]
    if not found:
        raise ConfigError(f"{option} is empty; give names separated by commas, `paper` or `all`")
    return found


def parse_field(text: str) -> Field:
    match = re.fullmatch(r"\s*([^()\s,=]+)\s*(?:\((.*)\))?\s*", text)
    if match is None:
        raise ConfigError(f"a scheme is written name or name(option=value, ...); {text!r} is neither")
    name = field_name(match[1])
    options = {}
    for item in split(match[2] or ""):
        key, sign, value = (piece.strip() for piece in item.partition("="))
        if not sign or key not in _OPTIONS:
            raise ConfigError(
                f"{text!r}: in the dynamics an option is one of {', '.join(_OPTIONS)}, as in mix_norm(tau=3)"
            )
        options[key] = load_yaml(value, source=f"the value of {key!r}")
    return scheme_field(name, **options)


def _group(text: str) -> tuple[str, ...] | None:
    word = canonical(text)
    if word == "paper":
        return PAPER_SIX
    if word == "all":
        return tuple(FIELDS)
    members = next((names for family, names in families().items() if canonical(family) == word), None)
    return None if members is None else tuple(name for name in FIELDS if name in members)
