"""The registry: name -> scheme config class, those of installed packages included."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import ClassVar, NoReturn

from pydantic import JsonValue

from normlab import plugins
from normlab.errors import ConfigError, canonical, unknown
from normlab.plugins import Origin
from normlab.schemes.base import Card, Frame, SchemeConfig


class _Schemes(MutableMapping[str, type[SchemeConfig]]):
    """A dictionary that loads the entry points of installed packages when it is listed, or asked for what it lacks."""

    def __init__(self) -> None:
        self.registered: dict[str, type[SchemeConfig]] = {}

    def __getitem__(self, name: str) -> type[SchemeConfig]:
        if name not in self.registered:
            plugins.load_installed(_take)
        return self.registered[name]

    def __setitem__(self, name: str, config: type[SchemeConfig]) -> None:
        self.registered[name] = config

    def __delitem__(self, name: str) -> None:
        del self.registered[name]

    def __iter__(self) -> Iterator[str]:
        self._complete()
        return iter(self.registered)

    def __len__(self) -> int:
        self._complete()
        return len(self.registered)

    def __repr__(self) -> str:
        return f"{len(self)} schemes: {', '.join(self)}"

    def _complete(self) -> None:
        """All that there is; what is broken is said once, and is missing."""
        known = len(plugins.broken())
        plugins.load_installed(_take)
        for sentence in plugins.broken()[known:]:
            print(f"normlab: {sentence}", file=sys.stderr)


SCHEMES = _Schemes()
_ORIGINS: dict[str, Origin] = {}


def register(config: type[SchemeConfig]) -> type[SchemeConfig]:
    """Add a scheme's config class under the default of its `name` field; usable as a decorator.

    The same class defined once more (a cell of a notebook that is run again) takes the place of the first.
    """
    name = config.model_fields["name"].default
    if not isinstance(name, str) or canonical(name) != name:
        raise ConfigError(f"{config.__name__}.name needs a lower-case default with underscores, not {name!r}")
    there = SCHEMES.registered.get(name, config)
    if (there.__module__, there.__qualname__) != (config.__module__, config.__qualname__):
        raise ConfigError(f"a scheme named {name!r} is registered already: {there.__qualname__}")
    SCHEMES[name] = config
    if (origin := plugins.loading()) is not None:
        _ORIGINS[name] = origin
    return config


def _take(entry: object) -> None:
    """What an entry point names: a config class, or a module that registers some."""
    if isinstance(entry, type) and issubclass(entry, SchemeConfig):
        register(entry)


def lookup(name: str) -> type[SchemeConfig]:
    """The config class of a registered name; dashes and underscores are the same."""
    if not isinstance(name, str):
        raise ConfigError(f"a scheme is named by a text, for example 'pre_norm', but got {name!r}")
    try:
        return SCHEMES[canonical(name)]
    except KeyError:
        raise ConfigError(unknown_scheme(name, plugins.recorded(canonical(name)))) from None


def unknown_scheme(name: str, origin: Origin | None = None) -> str:
    """The sentence for a scheme that nobody registered. `origin`: what a record says of it."""
    if origin is not None:
        return f"unknown scheme {name!r}; {origin.remedy}"
    return "; ".join([unknown("scheme", name, SCHEMES.registered, hint=plugins.HINT), *plugins.broken()])


def families() -> dict[str, tuple[str, ...]]:
    """Family -> its schemes, in the order of the registry; `placement`, `multi-stream` and so on (see the cards)."""
    found: dict[str, tuple[str, ...]] = {}
    for name, config in SCHEMES.items():
        found[config.card.family] = (*found.get(config.card.family, ()), name)
    return found


# -- schemes of somebody's own ------------------------------------------------------------------------------------------
def origin_of(config: type[SchemeConfig]) -> Origin | None:
    """Where a scheme comes from that is not built in."""
    if config.__module__.startswith("normlab."):
        return None
    name = config.model_fields["name"].default
    return _ORIGINS.get(name) or plugins.origin_of_module(config.__module__)


def origins(names: Sequence[str]) -> dict[str, Origin]:
    """Of these schemes those that are not built in; one that nobody registered has the origin that a sweep recorded."""
    there = SCHEMES.registered
    known = {name: origin_of(there[name]) if name in there else plugins.recorded(name) for name in names}
    return {name: origin for name, origin in known.items() if origin is not None}


EXTERNAL = "external"  # in a record: where a scheme comes from that is not built in, and its label


class UnknownScheme(SchemeConfig):
    """A scheme as a run on disk records it, where its code is not loaded: it has a label and options, and no equation.

    The options stay in the record: an attribute would be taken for something that schemes have.
    """

    card: ClassVar[Card] = Card(family="not loaded", equation="not loaded", citation="", growth="")
    record: dict[str, JsonValue]

    @property
    def external(self) -> Mapping[str, object]:
        """What the record says of it: its module or package, and its label."""
        found = self.record.get(EXTERNAL)
        return found if isinstance(found, dict) else {}

    @property
    def label(self) -> str:
        recorded = self.external.get("label")
        return recorded if isinstance(recorded, str) else self.name

    @property
    def remedy(self) -> str:
        origin = Origin.from_record(self.external) or plugins.recorded(self.name)
        return origin.remedy if origin is not None else "its module needs --import MODULE"

    def build(self, frame: Frame) -> NoReturn:
        raise ConfigError(f"unknown scheme {self.name!r}; {self.remedy}")
