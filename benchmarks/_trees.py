"""Two versions of normlab in one process, so that a new commit and an old one can take turns.

git worktree add ../before COMMIT && python -m benchmarks residuals --base ../before
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType


def load_tree(folder: Path) -> ModuleType:
    """The package of another checkout. Ours is what `import normlab` gives before and afterwards."""
    source = folder / "src"
    if not (source / "normlab" / "__init__.py").is_file():
        raise SystemExit(
            f"{folder} is no checkout of normlab: there is no src/normlab in it (git worktree add FOLDER COMMIT)"
        )
    ours = _taken()
    sys.path.insert(0, str(source))
    try:
        other = importlib.import_module("normlab")
        for name in ("model.transformer", "model.attention", "schemes.depth_stream", "schemes.sinkhorn"):
            importlib.import_module(f"normlab.{name}")  # what a forward pass may import later
        _ = other.Transformer
    finally:
        sys.path.remove(str(source))
        _taken()
        sys.modules.update(ours)
    assert Path(str(other.__file__)).is_relative_to(source.resolve()) or Path(str(other.__file__)).is_relative_to(
        source
    )
    return other


def _taken() -> dict[str, ModuleType]:
    """The modules of normlab that are loaded, taken out of the table."""
    names = [name for name in sys.modules if name == "normlab" or name.startswith("normlab.")]
    return {name: sys.modules.pop(name) for name in names}
