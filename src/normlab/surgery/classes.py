"""A swapped model stays a Hugging Face model: one generated config and model class for each backbone.

`normlab_llama` is the model type of a swapped Llama, `NormlabLlamaForCausalLM` its class, which builds the base model and
puts the scheme in (also on the meta device). A swapped model never keeps the type `llama`: another program would load
another function from it, with a warning only. Classes are made when they are first asked for, here by name (pickle) or
through transformers' own tables of types (`register`, which `import normlab.hf` calls).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from normlab import __version__
from normlab.errors import ConfigError, InputError, require
from normlab.files import write_text
from normlab.schemes import Scheme, SchemeConfig, Site, label
from normlab.schemes.names import from_record, to_record
from normlab.surgery.anatomy import anatomy
from normlab.surgery.hooks import Checkpointed
from normlab.surgery.splice import build, check, splice, way_of
from normlab.surgery.stream import StreamPlan

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

PREFIX, TYPE = "Normlab", "normlab_"
Model = TypeVar("Model", bound=nn.Module)


class Swapped(nn.Module):
    """What every generated model class adds to its base."""

    def __init__(self, config: PretrainedConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, **kwargs)
        chosen = stored_scheme(config)
        body = anatomy(self)
        check(chosen, body)
        splice(body, build(chosen, body), way=way_of(chosen))

    @property
    def _spliced(self) -> nn.Module:
        return next(module for module in self.modules() if "scheme" in module._modules)

    @property
    def scheme(self) -> nn.Module:
        found = self._spliced._modules["scheme"]
        assert found is not None
        return found

    @property
    def sites(self) -> tuple[Site, ...]:
        plan = self._spliced.splice
        assert isinstance(plan, StreamPlan)
        return plan.sites

    @property
    def branches(self) -> list[nn.Module]:
        """The module of each site, for `normlab diagnose`."""
        places = anatomy(self).places
        return [place.part(place.cores[0]) if len(place.cores) == 1 else place.module for place in places]

    def _initialize_missing_keys(self, *args: object, **kwargs: object) -> None:
        """What a checkpoint leaves out of the scheme starts as the scheme says; what it brought stays."""
        super()._initialize_missing_keys(*args, **kwargs)  # type: ignore[misc]
        scheme = self.scheme
        assert isinstance(scheme, Scheme)
        brought = {
            name: p.detach().clone() for name, p in scheme.named_parameters() if getattr(p, "_is_hf_initialized", False)
        }
        if len(brought) < len(list(scheme.parameters())):
            scheme.init_weights()
            scheme.load_state_dict(brought, strict=False)

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Callable[..., object] | None = None, **rest: object
    ) -> None:
        from torch.utils.checkpoint import checkpoint

        wrapped = Checkpointed(gradient_checkpointing_func or checkpoint)
        super()._set_gradient_checkpointing(enable, wrapped, **rest)  # type: ignore[misc]

    def save_pretrained(self, save_directory: str | PathLike[str], *args: object, **kwargs: object) -> object:
        found = super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if kwargs.get("is_main_process", True):
            write_card(save_directory, self.config, base_of(type(self)).__name__)  # type: ignore[arg-type]
        return found


def stored_scheme(config: PretrainedConfig) -> SchemeConfig:
    """The scheme that a config.json names, with all of its options."""
    stored = getattr(config, "normlab", None)
    stored = stored if isinstance(stored, dict) else {}
    given = stored.get("scheme")
    if not isinstance(given, dict) or "name" not in given:
        raise InputError(
            f"this config is of the type {config.model_type!r} but names no scheme under 'normlab'; it was not written by "
            "nl.swap"
        )
    try:
        return from_record(given)
    except ConfigError as error:
        raise InputError(
            f"this model was swapped by normlab {stored.get('version', '?')}, and this is normlab {__version__}, which does "
            f"not know its scheme: {error}"
        ) from None


def config_class(base: type[PretrainedConfig]) -> type[PretrainedConfig]:
    """NormlabLlamaConfig of LlamaConfig."""
    if base.model_type.startswith(TYPE):
        return base
    return _config_class(base)  # type: ignore[arg-type]  # a class is hashable


@cache
def _config_class(base: type[PretrainedConfig]) -> type[PretrainedConfig]:
    names = {"model_type": TYPE + base.model_type, "__module__": __name__, "__doc__": f"{base.__name__} and a scheme."}
    made = type(PREFIX + base.__name__, (base,), names)
    _convert_alike(base.model_type)
    return made


def _convert_alike(model_type: str) -> None:
    """Checkpoints of some architectures name their weights otherwise than the model does; a swapped one does as its base."""
    mapping = require("transformers.conversion_mapping", extra="hf", purpose="loading a swapped model")
    found = mapping.get_checkpoint_conversion_mapping(model_type)
    if found is not None:
        mapping.register_checkpoint_conversion_mapping(TYPE + model_type, found, overwrite=True)


def model_class(base: type[PreTrainedModel], config: type[PretrainedConfig]) -> type[PreTrainedModel]:
    """NormlabLlamaForCausalLM of LlamaForCausalLM."""
    return _model_class(base, config)  # type: ignore[arg-type]


@cache
def _model_class(base: type[PreTrainedModel], config: type[PretrainedConfig]) -> type[PreTrainedModel]:
    doc = f"{base.__name__} with a residual scheme of normlab."
    return type(
        PREFIX + base.__name__, (Swapped, base), {"config_class": config, "__module__": __name__, "__doc__": doc}
    )


def dress(model: PreTrainedModel, scheme: SchemeConfig) -> None:
    """Give a model that was swapped in place its generated classes."""
    old = model.config
    config = copy.deepcopy(old)
    config.__class__ = config_class(type(old))
    config.normlab = {"version": __version__, "scheme": to_record(scheme)}
    _same_config(model, old, config)
    base, kind = type(model), type(config)
    made = model_class(base, kind)
    capturing = require("transformers.utils.output_capturing", extra="hf", purpose="swapping a model")
    capturing._CAN_RECORD_REGISTRY[str(made)] = getattr(model, "_can_record_outputs", None)
    model.__class__ = made


def undress(model: PreTrainedModel) -> None:
    """The base classes again."""
    old = model.config
    config = copy.deepcopy(old)
    config.__class__ = type(old).__mro__[1]
    del config.normlab
    _same_config(model, old, config)
    model.__class__ = base_of(type(model))


def base_of(made: type[Model]) -> type[Model]:
    """The class of transformers under a generated one."""
    return made.__mro__[2]


def _same_config(model: PreTrainedModel, old: PretrainedConfig, new: PretrainedConfig) -> None:
    for module in model.modules():
        if vars(module).get("config") is old:
            module.config = new  # type: ignore[assignment]


def is_swapped(model: object) -> bool:
    return isinstance(model, Swapped)


# -- found by name ------------------------------------------------------------------------------------------------------
def __getattr__(name: str) -> type[PretrainedConfig] | type[PreTrainedModel]:
    if not name.startswith(PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    transformers = require("transformers", extra="hf", purpose=name)
    base = getattr(transformers, name.removeprefix(PREFIX))
    if hasattr(base, "model_type"):
        return config_class(base)
    return model_class(base, config_class(base.config_class))


def register() -> None:
    """Let transformers' tables find `normlab_...` types; each is made when it is asked for."""
    table = require("transformers", extra="hf", purpose="loading a swapped model").models.auto.configuration_auto
    if not isinstance(table.CONFIG_MAPPING._extra_content, _Types):
        table.CONFIG_MAPPING._extra_content = _Types(table.CONFIG_MAPPING._extra_content)


class _Types(dict[Any, Any]):
    """transformers' table of added types, which makes ours on demand."""

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key) and isinstance(key, str) and key.startswith(TYPE):
            self._make(key)
        return super().__contains__(key)

    def _make(self, key: str) -> None:
        auto = require("transformers", extra="hf", purpose=f"loading a model of the type {key!r}").models.auto
        base_type = key.removeprefix(TYPE)
        if base_type not in auto.configuration_auto.CONFIG_MAPPING._mapping:
            return
        base = auto.configuration_auto.CONFIG_MAPPING[base_type]
        config = config_class(base)
        self[key] = config
        for mapping in list(vars(auto.modeling_auto).values()):
            if type(mapping).__name__ != "_LazyAutoMapping":
                continue
            found = mapping.get(base, None)
            if isinstance(found, tuple):
                found = tuple(model_class(one, config) for one in found if one is not None)
            elif found is not None:
                found = model_class(found, config)
            if found:
                mapping.register(config, found, exist_ok=True)


# -- the model card ----------------------------------------------------------------------------------------------------
MARK = "<!-- written by normlab -->"
CARD = """---
library_name: transformers
tags: [normlab, {name}]
---
{mark}
# {base} with {label}

The residual stream of this model follows `{name}`: {equation}.
({citation}) Everything else is `{base}`, and its weights are in this folder.

It needs the packages transformers and normlab (from its repository, or a wheel that was built there). It runs no code of
its own.

```python
import normlab.hf  # registers the type {type} with transformers
from transformers import {auto}

model = {auto}.from_pretrained("PATH/OF/THIS/FOLDER")
```

Written by normlab {version}. `nl.fold(model)` gives a plain `{base}` where that is exact.
"""


def write_card(folder: str | PathLike[str], config: PretrainedConfig, base: str) -> None:
    """README.md, unless somebody else wrote one."""
    path = Path(folder) / "README.md"
    if path.exists() and MARK not in path.read_text(encoding="utf-8"):
        return
    scheme = stored_scheme(config)
    text = CARD.format(
        name=scheme.name, mark=MARK, base=base, label=label(scheme), equation=scheme.card.equation,
        citation=scheme.card.citation, type=config.model_type, auto=auto_class(base),
        version=config.normlab["version"],
    )  # fmt: skip
    write_text(path, text)


def auto_class(base: str) -> str:
    """The Auto class that loads a model of this class."""
    if base.endswith(("ForCausalLM", "LMHeadModel")):
        return "AutoModelForCausalLM"
    head = base.rpartition("For")
    return f"AutoModelFor{head[2]}" if head[1] else "AutoModel"
