"""The registry: name -> scheme config class."""

from __future__ import annotations

from normlab.errors import ConfigError, canonical, unknown
from normlab.schemes.base import SchemeConfig

SCHEMES: dict[str, type[SchemeConfig]] = {}


def register(config: type[SchemeConfig]) -> type[SchemeConfig]:
    """Add a scheme's config class under the default of its `name` field; usable as a decorator."""
    name = config.model_fields["name"].default
    if not isinstance(name, str) or canonical(name) != name:
        raise ConfigError(f"{config.__name__}.name needs a lower-case default with underscores, not {name!r}")
    if SCHEMES.get(name, config) is not config:
        raise ConfigError(f"a scheme named {name!r} is registered already: {SCHEMES[name].__qualname__}")
    SCHEMES[name] = config
    return config


def lookup(name: str) -> type[SchemeConfig]:
    """The config class of a registered name; dashes and underscores are the same."""
    if not isinstance(name, str):
        raise ConfigError(f"a scheme is named by a text, for example 'pre_norm', but got {name!r}")
    try:
        return SCHEMES[canonical(name)]
    except KeyError:
        raise ConfigError(unknown("scheme", name, SCHEMES, hint="`normlab schemes` lists them")) from None


def families() -> dict[str, tuple[str, ...]]:
    """Family -> its schemes, in the order of the registry; `placement`, `multi-stream` and so on (see the cards)."""
    found: dict[str, tuple[str, ...]] = {}
    for name, config in SCHEMES.items():
        found[config.card.family] = (*found.get(config.card.family, ()), name)
    return found
