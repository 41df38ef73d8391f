"""The model as its class and its config would make it, with the very same weights.

Nothing is copied: parameters are built without memory and then shared. Buffers that no file stores, such as rotary
frequencies, are computed anew, so that damage to them shows too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

# The code of these classes is what everybody runs. A class of somebody's own defines itself what it computes.
HOMES = ("transformers.models.", "normlab.")
ADAPTED = ("peft", "bitsandbytes", "torchao", "auto_gptq", "awq", "optimum")


def pristine(model: nn.Module) -> nn.Module | None:
    """None where there is nothing to compare with: a class of another home, adapters, quantised or other weights."""
    config = getattr(model, "config", None)
    if config is None or not type(model).__module__.startswith(HOMES) or not _plain(model):
        return None
    try:
        with _hollow():
            twin: nn.Module = type(model)(copy.deepcopy(config))
    except Exception:  # a class that cannot be made of its config alone
        return None
    weights = _fitting(model.state_dict(), twin, {name for name, _ in model.named_parameters(remove_duplicate=False)})
    if weights is None:
        return None
    try:
        twin.load_state_dict(weights, strict=False, assign=True)
    except RuntimeError:  # shapes that the config does not know of
        return None
    if any(parameter.is_meta for parameter in twin.parameters()):
        return None
    _settle(twin, model)
    return twin.eval()


def _plain(model: nn.Module) -> bool:
    homes = {type(module).__module__.split(".")[0] for module in model.modules()}
    numbers = all(parameter.is_floating_point() and not parameter.is_meta for parameter in model.parameters())
    return numbers and not homes & set(ADAPTED) and getattr(model.config, "quantization_config", None) is None


@contextmanager
def _hollow() -> Iterator[None]:
    """Parameters without memory, buffers as they are."""
    register = nn.Module.register_parameter

    def empty(module: nn.Module, name: str, value: nn.Parameter | None) -> None:
        register(module, name, value)
        if value is not None and not value.is_meta:
            own = nn.Parameter(value.detach().to("meta"), requires_grad=value.requires_grad)
            own.__dict__.update(value.__dict__)
            module._parameters[name] = own

    state = torch.get_rng_state()
    nn.Module.register_parameter = empty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
        torch.set_rng_state(state)


def _fitting(found: Mapping[str, Tensor], twin: nn.Module, parameters: set[str]) -> dict[str, Tensor] | None:
    """The twin's own names for what was found: a module that was wrapped has one step more in its path.

    None where something is missing, or where the model has parameters that its class has not: these are adapters.
    """
    wanted = twin.state_dict().keys()
    weights = {name: value for name, value in found.items() if name in wanted}
    left = {name: value for name, value in found.items() if name not in wanted}
    shorter: dict[str, list[str]] = {}
    for name in left:
        steps = name.split(".")
        for place in range(len(steps) - 1):
            shorter.setdefault(".".join(steps[:place] + steps[place + 1 :]), []).append(name)
    for name in wanted - weights.keys():
        places = shorter.get(name, [])
        if len(places) != 1 or places[0] not in left:
            return None
        weights[name] = left.pop(places[0])
    return None if left.keys() & parameters else weights


def _settle(twin: nn.Module, model: nn.Module) -> None:
    """Device and precision as in the model, small constants of norms as they are (they have a rule of their own)."""
    first = next(model.parameters())
    own = dict(model.named_buffers())
    for module in twin.modules():
        make = getattr(module, "create_weight", None)
        table = getattr(module, "weight", None)
        if callable(make) and isinstance(table, nn.Parameter) and not table.requires_grad:  # a table of sines
            module.weight = nn.Parameter(make().to(table), requires_grad=False)
    for name, buffer in twin.named_buffers():
        like = own.get(name)
        kind = like.dtype if like is not None and like.is_floating_point() else buffer.dtype
        buffer.data = buffer.data.to(first.device, kind if buffer.is_floating_point() else buffer.dtype)
    for name, module in twin.named_modules():
        with suppress(AttributeError):
            theirs = vars(model.get_submodule(name))
            for key, value in vars(module).items():
                if "eps" in key and isinstance(value, float) and isinstance(theirs.get(key), float):
                    setattr(module, key, theirs[key])
