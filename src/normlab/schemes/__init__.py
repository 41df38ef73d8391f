"""Every scheme, in one table. Add yours: a row in rows.py, or a file and a line here."""

from __future__ import annotations

from typing import Any

from normlab.errors import ConfigError, canonical, unknown
from normlab.schemes.base import (
    Access,
    Branch,
    Card,
    Demands,
    Frame,
    Init,
    Parts,
    Scheme,
    SchemeConfig,
    Site,
    make_sites,
)
from normlab.schemes.delta import DeltaAttnRes
from normlab.schemes.dense_former import DenseFormer, Mudd
from normlab.schemes.depth_attention import AttnRes, BlockAttnRes
from normlab.schemes.dual import BottomToTop, ResiDual, SiameseNorm
from normlab.schemes.gated import GatedResidual, IndependentHyperConnections
from normlab.schemes.hyper import HyperConnections
from normlab.schemes.mhc import ManifoldHyperConnections
from normlab.schemes.mixing import DepthMixing, depth_mixing
from normlab.schemes.ngpt import Ngpt
from normlab.schemes.rows import CONFIGS as _ROW_CONFIGS
from normlab.schemes.skips import LambdaSkip, Laurel

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


_CONFIGS: tuple[type[SchemeConfig], ...] = (
    *_ROW_CONFIGS,
    Ngpt,
    ResiDual,
    SiameseNorm,
    BottomToTop,
    HyperConnections,
    ManifoldHyperConnections,
    IndependentHyperConnections,
    GatedResidual,
    LambdaSkip,
    Laurel,
    DenseFormer,
    Mudd,
    AttnRes,
    BlockAttnRes,
    DeltaAttnRes,
)
for _config in _CONFIGS:
    register(_config)


def scheme(name: str, **options: Any) -> SchemeConfig:
    """A scheme's configuration by its registered name: `scheme("block_attn_res", blocks=8)`."""
    return lookup(name)(**options)


def lookup(name: str) -> type[SchemeConfig]:
    if not isinstance(name, str):
        raise ConfigError(f"a scheme is named by a text, for example 'pre_norm', but got {name!r}")
    try:
        return SCHEMES[canonical(name)]
    except KeyError:
        raise ConfigError(unknown("scheme", name, SCHEMES, hint="`normlab schemes` lists them")) from None


__all__ = [
    "SCHEMES",
    "Access",
    "Branch",
    "Card",
    "Demands",
    "DepthMixing",
    "Frame",
    "Init",
    "Parts",
    "Scheme",
    "SchemeConfig",
    "Site",
    "depth_mixing",
    "lookup",
    "make_sites",
    "register",
    "scheme",
]
