"""Fewer layers in a model and in all that its config says of them.

A config speaks of layers in many places. A list of as many entries as there are layers is cut with them (without its
`layer_types` Gemma 3 would load with wrong masks), numbers that count layers are counted again, and layers are numbered
anew, because a cache finds them by number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normlab.errors import UnsupportedError
from normlab.surgery.anatomy import Anatomy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

COUNTS = ("max_window_layers", "first_k_dense_replace", "num_dense_layers")  # how many of the first layers are special


def cut(body: Anatomy, kept: Sequence[int]) -> Callable[[], None]:
    """Leave only these layers in the model and in its config. Returns a function that undoes it."""
    model = body.model
    depth = len(body.layers)
    parent, name = _container(body)
    whole, old = getattr(parent, name), model.config
    numbers = [(m, m.layer_idx) for layer in body.layers for m in layer.modules() if hasattr(m, "layer_idx")]
    rescaled: list[tuple[Tensor, Tensor]] = []
    config = copy.deepcopy(old)
    cut_config(config.get_text_config(), kept, depth)
    _set_config(model, old, config)
    setattr(parent, name, nn.ModuleList(body.layers[layer] for layer in kept))
    for position, layer in enumerate(kept):
        for module in body.layers[layer].modules():
            if hasattr(module, "layer_idx"):
                setattr(module, "layer_idx", position)  # noqa: B010
        if getattr(config, "scale_attn_by_inverse_layer_idx", False):
            rescaled += _rescale_queries(body.layers[layer], (position + 1) / (layer + 1))

    def undo() -> None:
        setattr(parent, name, whole)
        _set_config(model, config, old)
        for module, number in numbers:
            module.layer_idx = number
        with torch.no_grad():
            for parameter, value in rescaled:
                parameter.copy_(value)

    return undo


def cut_config(config: PretrainedConfig, kept: Sequence[int], depth: int) -> None:
    """Every list of one entry a layer, and every number that counts layers."""
    for key, value in list(vars(config).items()):
        if (
            isinstance(value, (list, tuple))
            and len(value) == depth
            and not key.endswith(("_id", "_ids", "architectures"))
        ):
            setattr(config, key, type(value)(value[layer] for layer in kept))
        elif key in COUNTS and isinstance(value, int):
            setattr(config, key, sum(layer < value for layer in kept))
    config.num_hidden_layers = len(kept)


def _container(body: Anatomy) -> tuple[nn.Module, str]:
    for module in body.model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) and child[0] is body.layers[0]:
                return module, name
    raise UnsupportedError(f"the layers of {type(body.model).__name__} are not in a ModuleList")


def _set_config(model: PreTrainedModel, old: PretrainedConfig, new: PretrainedConfig) -> None:
    pairs = [(old, new)]
    if old.get_text_config() is not old:
        pairs.append((old.get_text_config(), new.get_text_config()))
    for module in model.modules():
        for before, after in pairs:
            if vars(module).get("config") is before:
                module.config = after  # type: ignore[assignment]


@torch.no_grad()
def _rescale_queries(layer: nn.Module, factor: float) -> list[tuple[Tensor, Tensor]]:
    """GPT-2 with scale_attn_by_inverse_layer_idx divides scores by a layer's number, which has changed."""
    weight, bias = layer.get_parameter("attn.c_attn.weight"), layer.get_parameter("attn.c_attn.bias")
    before: list[tuple[Tensor, Tensor]] = [(p, p.clone()) for p in (weight, bias)]
    width = weight.shape[0]
    weight[:, :width].mul_(factor)
    bias[:width].mul_(factor)
    return before
