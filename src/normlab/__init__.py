"""normlab: where norms go in a Transformer, and how a layer's output joins the residual stream.

`import normlab` is cheap: each public name loads its module (and torch) on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that defines it ("" = the module itself is the value).
_EXPORTS = {
    "SCHEMES": "normlab.schemes",
    "scheme": "normlab.schemes",
    "register": "normlab.schemes",
    "Transformer": "normlab.model",
    "TransformerConfig": "normlab.model",
    "diagnose": "normlab.probes.diagnose",
    "diagnose_change": "normlab.probes.change",
    "Monitor": "normlab.probes.monitor",
    "EMA": "normlab.training",
    "BEMA": "normlab.training",
    "Cost": "normlab.model.cost",
    "cost": "normlab.model.cost",
    "Pipeline": "normlab.model.pipeline",
    "compare": "normlab.experiments.api",
    "stability": "normlab.experiments.api",
    "lengthgen": "normlab.experiments.api",
    "claims": "normlab.experiments.claims.book",
    "swap": "normlab.surgery.swap",
    "fold": "normlab.surgery.fold",
    "prune": "normlab.surgery.prune",
    "NormlabError": "normlab.errors",
    "ConfigError": "normlab.errors",
    "InputError": "normlab.errors",
}
_MODULES = (
    "config",
    "dynamics",
    "errors",
    "experiments",
    "model",
    "probes",
    "report",
    "schemes",
    "tasks",
    "testing",
    "theory",
    "training",
)
# Rooms that need an optional package: `nl.hf`, `nl.lightning`. Not in __all__, so that a star import needs neither.
_OPTIONAL = {"hf": "normlab.hf", "lightning": "normlab.integrations.lightning"}

__all__ = ["__version__", *sorted(_EXPORTS), *_MODULES]

if TYPE_CHECKING:
    from normlab.errors import ConfigError as ConfigError
    from normlab.errors import InputError as InputError
    from normlab.errors import NormlabError as NormlabError
    from normlab.experiments.api import compare as compare
    from normlab.experiments.api import lengthgen as lengthgen
    from normlab.experiments.api import stability as stability
    from normlab.experiments.claims.book import claims as claims
    from normlab.model import Transformer as Transformer
    from normlab.model import TransformerConfig as TransformerConfig
    from normlab.model.cost import Cost as Cost
    from normlab.model.cost import cost as cost
    from normlab.model.pipeline import Pipeline as Pipeline
    from normlab.probes.change import diagnose_change as diagnose_change
    from normlab.probes.diagnose import diagnose as diagnose
    from normlab.probes.monitor import Monitor as Monitor
    from normlab.schemes import SCHEMES as SCHEMES
    from normlab.schemes import register as register
    from normlab.schemes import scheme as scheme
    from normlab.surgery.fold import fold as fold
    from normlab.surgery.prune import prune as prune
    from normlab.surgery.swap import swap as swap
    from normlab.training import BEMA as BEMA
    from normlab.training import EMA as EMA


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"normlab.{name}")
    elif name in _OPTIONAL:
        value = importlib.import_module(_OPTIONAL[name])
    else:
        raise AttributeError(f"module 'normlab' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
