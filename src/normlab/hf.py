"""`import normlab.hf`: transformers' Auto classes load swapped models from now on.

    import normlab.hf
    model = AutoModelForCausalLM.from_pretrained("a-swapped-folder")

Nothing of a model runs as code: the folder names a scheme, and this package has it. Also here: `MonitorCallback` and
`BEMACallback` for a Hugging Face Trainer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from normlab.surgery.classes import register

if TYPE_CHECKING:
    from normlab.integrations.hf_averaging import BEMACallback as BEMACallback
    from normlab.integrations.hf_trainer import MonitorCallback as MonitorCallback

_CALLBACKS = {
    "MonitorCallback": "normlab.integrations.hf_trainer",
    "BEMACallback": "normlab.integrations.hf_averaging",
}
__all__ = ["BEMACallback", "MonitorCallback", "register"]

register()


def __getattr__(name: str) -> Any:
    if name not in _CALLBACKS:
        raise AttributeError(f"module 'normlab.hf' has no attribute {name!r}")
    value = getattr(importlib.import_module(_CALLBACKS[name]), name)
    globals()[name] = value
    return value
