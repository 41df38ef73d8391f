"""What the requests of several experiments share: schemes, the model's shape, the data."""

from __future__ import annotations

import re

from pydantic import field_validator

from normlab.errors import ConfigError
from normlab.experiments.request import AnyTask, Request, Start, option, shipped_text


def round_3(value: float) -> float:
    """Three digits, so that names and values agree."""
    return float(f"{value:.3g}")


def some_layers(depths: tuple[int, ...]) -> tuple[int, ...]:
    if not depths or min(depths) < 1:
        raise ValueError(f"give one or more numbers of layers, each at least 1, but got {list(depths)}")
    return depths


def known_schemes(given: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of what was asked for, families and `all` spread. Raises for an unknown one, or one that is given twice."""
    from normlab.schemes.names import parse_schemes

    return tuple(choice.label for choice in parse_schemes(given))


def run_name(scheme: str, depth: int, lr: float, seed: int) -> str:
    """The folder of a run: the scheme's label, with what a file's name may not hold left out."""
    return f"{re.sub(r'[^a-z0-9_=.]+', '-', scheme).strip('-')}-l{depth}-lr{lr:.3g}-s{seed}"


def seconds(text: str) -> float:
    """90, 90s, 10m, 1.5h"""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None:
        raise ConfigError(f"a time is written like 90s, 10m or 2h; {text!r} is not")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


class GridRequest(Request):
    """Schemes at several depths on one task."""

    schemes: tuple[str, ...] = option(
        ("pre_norm",), "Names with commas, options in brackets: block_attn_res(blocks=4); a family; or all."
    )
    depths: tuple[int, ...] = option((12,), "Layers; several with commas.", flag="--depth")
    dim: int = option(64, "Width.", ge=1)
    heads: int = option(4, "Attention heads.", ge=1)
    batch: int = option(16, "Sequences a step.", ge=1)
    length: int = option(64, "Tokens a sequence.", ge=1)
    task: AnyTask = option(
        shipped_text, "A text file (at most 512 MB), or a task's name (default: the text that ships).", flag="--data"
    )
    start: Start = "fair"

    @field_validator("schemes")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_schemes(names)

    @field_validator("depths")
    @classmethod
    def _layers(cls, depths: tuple[int, ...]) -> tuple[int, ...]:
        return some_layers(depths)
