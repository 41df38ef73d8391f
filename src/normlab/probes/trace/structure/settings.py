"""Settings of layers that are no weights: activations, eps, scales. One that a single layer has is an edit.

Layers of one class are built in one loop, so they agree in all that is not a pattern over depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from normlab.probes.trace.hooks import Layout

_NUMBERS = (
    "eps",
    "epsilon",
    "scal",
    "multiplier",
    "softcap",
    "clip",
    "num_heads",
    "head_dim",
    "top_k",
)  # in their names
ACTIVATIONS = ("silu", "gelu", "relu", "swish", "mish", "tanh", "sigmoid", "glu", "act")


@dataclass(frozen=True)
class SettingRow:
    """What one layer has under a name, as text; only names of which layers differ are kept."""

    layer: int
    name: str
    value: str
    function: bool  # an activation, and no number


def read_settings(layout: Layout) -> tuple[SettingRow, ...]:
    found: dict[str, list[SettingRow]] = {}
    for index, (_, layer) in enumerate(layout.layers):
        for name, value, function in _settings(layer):
            found.setdefault(name, []).append(SettingRow(index, name, value, function))
    differing = [rows for rows in found.values() if len({row.value for row in rows}) > 1]
    return tuple(row for rows in differing for row in rows)


def _settings(layer: nn.Module) -> Iterator[tuple[str, str, bool]]:
    for path, module in layer.named_modules():
        kind, last = type(module).__name__, path.rpartition(".")[2]
        if path and not any(True for _ in module.parameters()) and (is_activation(kind) or is_activation(last)):
            yield path, kind, True
        for name, value in vars(module).items():
            here = f"{path}.{name}".strip(".")
            if (
                isinstance(value, (int, float))
                and not isinstance(value, bool)
                and any(word in name for word in _NUMBERS)
            ):
                yield here, f"{value:g}", False
            elif callable(value) and not isinstance(value, (nn.Module, Tensor, type)) and is_activation(name):
                yield here, getattr(value, "__name__", type(value).__name__), True


def is_activation(name: str) -> bool:
    return any(word in name.lower() for word in ACTIVATIONS)
