"""What several subjects need: the keys of a layer, what a module saw on some text, a layer that reads another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Layer
from ..blind_faults.tools import handed_in, stream_of, with_handed_in, with_stream
from ..protocol import Patient

LEAK = "what is still to come leaks into the prediction"


def keys_of(layer: Layer) -> nn.Module:
    """The module whose output is turned by positions and then compared: the head norm where there is one."""
    return getattr(layer.attention, "k_norm", layer.key)


def on_heads(site: nn.Module, width: int, change: Callable[[Tensor], Tensor]) -> None:
    """`change` sees what the site returns, [rows, tokens, heads * width], as [rows, tokens, heads, width]."""
    site.register_forward_hook(
        lambda _, args, output: change(output.view(*output.shape[:2], -1, width)).reshape(output.shape)
    )


def before_out(layer: Layer, change: Callable[[Tensor], Tensor]) -> None:
    """`change` sees what the heads hand to the output matrix: [rows, tokens, heads * width]."""
    layer.out.register_forward_pre_hook(lambda module, args: (change(args[0]),))


def before_layer(module: nn.Module, change: Callable[[Tensor], Tensor | None]) -> None:
    """`change` sees the stream that a layer is handed; None leaves it as it is."""

    def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
        stream = change(handed_in(args, kwargs))
        return None if stream is None else with_handed_in(args, kwargs, stream)

    module.register_forward_pre_hook(hook, with_kwargs=True)


def behind(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """`change` sees what the module returns."""
    module.register_forward_hook(lambda _, args, output: with_stream(output, change(stream_of(output))))


class Kept:
    """What a module returned last; given out only to somebody who expects the same shape."""

    def __init__(self, module: nn.Module) -> None:
        self.value: Tensor | None = None
        module.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, args: Any, output: Any) -> None:
        self.value = stream_of(output)

    def instead_of(self, other: Tensor) -> Tensor:
        return self.value if self.value is not None and self.value.shape == other.shape else other


@torch.no_grad()
def outputs_on(patient: Patient, module: nn.Module, text: Tensor) -> Tensor:
    """What a module returns on that text, as [tokens, width]."""
    seen: list[Tensor] = []
    handle = module.register_forward_hook(lambda _, args, output: seen.append(stream_of(output)))
    patient.model(text)
    handle.remove()
    return seen[0].flatten(0, -2)


def shouted(text: Tensor) -> Tensor:
    """In capitals."""
    return torch.where((text >= 97) & (text <= 122), text - 32, text)
