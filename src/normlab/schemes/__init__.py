"""Every scheme, in one table. Add yours: a row in rows.py, or a file and a line here."""

from __future__ import annotations

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
from normlab.schemes.names import SchemeChoice, label, parse_scheme, parse_schemes, scheme
from normlab.schemes.ngpt import Ngpt
from normlab.schemes.registry import SCHEMES, families, lookup, register
from normlab.schemes.rows import CONFIGS as _ROW_CONFIGS
from normlab.schemes.skips import LambdaSkip, Laurel

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
    "SchemeChoice",
    "SchemeConfig",
    "Site",
    "depth_mixing",
    "families",
    "label",
    "lookup",
    "make_sites",
    "parse_scheme",
    "parse_schemes",
    "register",
    "scheme",
]
