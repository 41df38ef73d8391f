"""The model card of a swapped model: what it is, and how to load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normlab.files import write_text
from normlab.schemes import label, lookup

MARK = "<!-- written by normlab -->"
CARD = """---
library_name: transformers
tags: [normlab, {name}]
---
{mark}
# {base} with {label}

The residual stream of this model follows `{name}`: {equation}.
({citation}) Everything else is `{base}`, and its weights are in this folder.

It needs the package normlab beside transformers; it runs no code of its own:

```
pip install 'normlab[hf]'
```

```python
import normlab.hf  # registers the type {type} with transformers
from transformers import {auto}

model = {auto}.from_pretrained("PATH/OF/THIS/FOLDER")
```

Written by normlab {version}. `nl.fold(model)` gives a plain `{base}` where that is exact.
"""


def write_card(folder: str | Path, model: Any) -> None:
    """README.md, unless somebody else wrote one."""
    path = Path(folder) / "README.md"
    if path.exists() and MARK not in path.read_text(encoding="utf-8"):
        return
    stored = model.config.normlab
    scheme = lookup(stored["scheme"]["name"]).from_dict(stored["scheme"])
    base = type(model).__mro__[2].__name__
    text = CARD.format(
        name=scheme.name, mark=MARK, base=base, label=label(scheme), equation=scheme.card.equation,
        citation=scheme.card.citation, type=model.config.model_type, auto=auto_class(base), version=stored["version"],
    )  # fmt: skip
    write_text(path, text)


def auto_class(base: str) -> str:
    """The Auto class that loads a model of this class."""
    if base.endswith(("ForCausalLM", "LMHeadModel")):
        return "AutoModelForCausalLM"
    head = base.rpartition("For")
    return f"AutoModelFor{head[2]}" if head[1] else "AutoModel"
