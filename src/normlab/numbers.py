"""Lists of numbers as people type them: `2,4,8` and `1e-3,3e-3`. One parser for every option that takes some."""

from __future__ import annotations

import math

from normlab.errors import ConfigError


def whole_numbers(text: str, *, option: str) -> tuple[int, ...]:
    """In the order given; nothing between two commas is left out, so that an empty text is an empty list."""
    try:
        return tuple(int(part) for part in _parts(text))
    except ValueError:
        raise ConfigError(
            f"{option} takes whole numbers with commas between them, for example 2,4,8; {text!r} is not"
        ) from None


def real_numbers(text: str, *, option: str) -> tuple[float, ...]:
    """As `whole_numbers`; finite ones only."""
    try:
        found = tuple(float(part) for part in _parts(text))
        if all(map(math.isfinite, found)):
            return found
    except ValueError:
        pass
    raise ConfigError(f"{option} takes numbers with commas between them, for example 1e-3,3e-3; {text!r} is not")


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part.strip()]
