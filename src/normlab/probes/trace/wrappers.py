"""What models are wrapped in: torch.compile, DistributedDataParallel, FSDP."""

from __future__ import annotations

from torch import nn


def _wrappers(model: nn.Module) -> list[nn.Module]:
    """The model and what it wraps, outermost first: DistributedDataParallel, torch.compile, the model itself."""
    found = [model]
    while True:
        inner = getattr(found[-1], "_orig_mod", None)
        if inner is None and _is_parallel(found[-1]):
            inner = found[-1].module
        if inner is None:
            return found
        found.append(inner)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself: hooks on a wrapper see nothing of what happens inside."""
    return _wrappers(model)[-1]


def is_compiled(model: nn.Module) -> bool:
    wrapped = any(hasattr(part, "_orig_mod") for part in _wrappers(model))
    return wrapped or _compiled_inside(unwrapped(model))


def _compiled_inside(model: nn.Module) -> bool:
    """`model.compile()` compiles in place and leaves no wrapper."""
    return any(module._compiled_call_impl is not None for module in model.modules())


def _is_parallel(model: nn.Module) -> bool:
    return type(model).__name__ in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
