"""Where a Hugging Face model keeps its residual stream: its layers, their norms and branches, and who owns them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from normlab.errors import UnsupportedError, require
from normlab.probes.trace.roles import BranchRoles, LayerRoles, roles_for
from normlab.schemes import Site
from normlab.schemes.base import Kind
from normlab.schemes.norms import NormKind

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class SitePlace:
    """One site: the branches that read together and are added together (two where a layer's branches are parallel)."""

    site: Site
    module: nn.Module  # the layer
    branches: tuple[BranchRoles, ...]

    @property
    def pre(self) -> tuple[str, ...]:
        """The norms in front; parallel branches may share one."""
        return tuple(dict.fromkeys(branch.pre for branch in self.branches if branch.pre))

    @property
    def res(self) -> tuple[str, ...]:
        return tuple(branch.res for branch in self.branches if branch.res)

    @property
    def out(self) -> str:
        return self.branches[-1].out

    @property
    def cores(self) -> tuple[str, ...]:
        return tuple(branch.core or branch.added for branch in self.branches)

    def part(self, name: str) -> nn.Module:
        return self.module.get_submodule(name)


@dataclass(frozen=True)
class Anatomy:
    model: PreTrainedModel
    owner: Any  # the PreTrainedModel that holds the layers; `splice` gives it a scheme and a plan
    layers: tuple[nn.Module, ...]
    places: tuple[SitePlace, ...]
    dim: int
    norm: NormKind
    eps: float

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(place.site for place in self.places)

    @property
    def placement(self) -> str:
        roles = roles_for(self.layers[0])
        assert roles is not None
        return roles.placement


def anatomy(model: nn.Module) -> Anatomy:
    """The parts of this model, or a sentence why they are not known."""
    transformers = require("transformers", extra="hf", purpose="surgery on a model")
    name = type(model).__name__
    if not isinstance(model, transformers.PreTrainedModel):
        raise UnsupportedError(
            f"{name} is not a Hugging Face model (a transformers.PreTrainedModel), the only kind that can be operated on; "
            "unwrap it first (DistributedDataParallel, torch.compile, PEFT), or build it with nl.Transformer(scheme=...)"
        )
    if getattr(model, "hf_quantizer", None) is not None or getattr(model.config, "quantization_config", None):
        raise UnsupportedError(
            f"{name} is quantised, and a scheme would not fit its weights; load it in full precision"
        )
    if any("_hf_hook" in vars(module) for module in model.modules()):
        raise UnsupportedError(
            f"{name} was spread over devices by accelerate (device_map); swap it first, save it, and load the folder so"
        )
    prefix, layers = _tower(model)
    rows = [roles_for(layer) for layer in layers]
    assert all(row is not None for row in rows)
    depth = getattr(model.config.get_text_config(), "num_hidden_layers", len(layers))
    if depth != len(layers) and len(layers) == 1:
        raise UnsupportedError(
            f"{type(layers[0]).__name__} is one block that {name} applies {depth} times, and a scheme needs a block for each"
        )
    places = _places(layers, [row for row in rows if row is not None])
    owner = _owner(model, prefix, transformers.PreTrainedModel)
    kind, eps = _norm_of(places)
    return Anatomy(model, owner, tuple(layers), places, _width(model, places), kind, eps)


def _tower(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """The layers of the largest tower that the table knows, and the name of their container."""
    towers: dict[str, list[nn.Module]] = defaultdict(list)
    for name, module in model.named_modules():
        if roles_for(module) is not None:
            towers[name.rpartition(".")[0]].append(module)
    if not towers:
        kinds = [
            type(group[0]).__name__ for group in model.modules() if isinstance(group, nn.ModuleList) and len(group)
        ]
        raise UnsupportedError(
            f"the layers of {type(model).__name__} ({', '.join(sorted(set(kinds))) or 'none found'}) are not in the table "
            "of architectures, so which of their modules is a norm and which a branch is not known; the table is "
            "normlab.probes.trace.roles.TABLE"
        )
    return max(towers.items(), key=lambda item: sum(p.numel() for layer in item[1] for p in layer.parameters()))


def _places(layers: list[nn.Module], rows: list[LayerRoles]) -> tuple[SitePlace, ...]:
    found: list[tuple[int, Kind, nn.Module, tuple[BranchRoles, ...]]] = []
    for number, (layer, row) in enumerate(zip(layers, rows, strict=True), 1):
        if any(branch.carry for branch in row.branches):
            raise UnsupportedError(
                f"{row.layer} carries its normed input past the branch instead of the stream "
                "(apply_residual_connection_post_layernorm), and no scheme here does that"
            )
        if any(branch.parallel for branch in row.branches):
            found.append((number, "attention", layer, row.branches))
        else:
            kinds: list[Kind] = ["ffn" if branch.kind == "ffn" else "attention" for branch in row.branches]
            found += [(number, kind, layer, (branch,)) for kind, branch in zip(kinds, row.branches, strict=True)]
    count, depth = len(found), len(layers)
    return tuple(
        SitePlace(Site(index, number, kind, count, depth), layer, branches)
        for index, (number, kind, layer, branches) in enumerate(found)
    )


def _owner(model: PreTrainedModel, prefix: str, kind: type[nn.Module]) -> nn.Module:
    """The nearest PreTrainedModel around the layers: there transformers collects hidden states."""
    parts = prefix.split(".")
    for end in range(len(parts), -1, -1):
        found = model.get_submodule(".".join(parts[:end])) if end else model
        if isinstance(found, kind):
            return found
    return model


def _norm_of(places: tuple[SitePlace, ...]) -> tuple[NormKind, float]:
    """The kind of norm that this model uses, for new ones."""
    for place in places:
        names = [*place.pre, *place.res, *([place.out] if place.out else [])]
        for name in names:
            norm = place.part(name)
            eps = next((float(getattr(norm, key)) for key in ("eps", "variance_epsilon") if hasattr(norm, key)), 1e-6)
            centred = "layernorm" in type(norm).__name__.lower() and not hasattr(norm, "variance_epsilon")
            return ("layernorm" if centred else "rmsnorm"), eps
    return "rmsnorm", 1e-6


def _width(model: PreTrainedModel, places: tuple[SitePlace, ...]) -> int:
    for place in places:
        for name in (*place.pre, *place.res, *([place.out] if place.out else [])):
            weight = getattr(place.part(name), "weight", None)
            if weight is not None:
                return int(weight.shape[-1])
    return int(model.config.get_text_config().hidden_size)
