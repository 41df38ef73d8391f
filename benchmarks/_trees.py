"""Two versions of normlab in one process, so that a new commit and an old one can take turns.

git worktree add ../before COMMIT && python -m benchmarks residuals --base ../before

A function that imports when it is called would get *our* modules: an old `block_attn_res` would then be built from our
classes. So whatever belongs to the other tree is made and run inside `Tree.taking_turns`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Tree:
    """The package of another checkout, with its modules."""

    source: Path
    package: ModuleType
    modules: dict[str, ModuleType]

    @contextmanager
    def taking_turns(self) -> Iterator[ModuleType]:
        """Inside, `import normlab...` means this tree, also for imports inside functions; outside it means ours."""
        ours = _taken()
        sys.modules.update(self.modules)
        sys.path.insert(0, str(self.source))
        try:
            yield self.package
        finally:
            sys.path.remove(str(self.source))
            self.modules.update(_taken())
            sys.modules.update(ours)


def load_tree(folder: Path) -> Tree:
    """Another checkout. Ours is what `import normlab` gives before and afterwards."""
    source = (folder / "src").resolve()
    if not (source / "normlab" / "__init__.py").is_file():
        raise SystemExit(
            f"{folder} is no checkout of normlab: there is no src/normlab in it (git worktree add FOLDER COMMIT)"
        )
    ours = _taken()
    sys.path.insert(0, str(source))
    try:
        package = importlib.import_module("normlab")
        _ = package.Transformer
    finally:
        sys.path.remove(str(source))
        modules = _taken()
        sys.modules.update(ours)
    strangers = [name for name, module in modules.items() if not belongs(module, source)]
    assert not strangers, f"not of {source}: {strangers}"
    return Tree(source, package, modules)


def belongs(module: ModuleType, source: Path) -> bool:
    return Path(str(module.__file__)).resolve().is_relative_to(source)


def _taken() -> dict[str, ModuleType]:
    """The modules of normlab that are loaded, taken out of the table."""
    names = [name for name in sys.modules if name == "normlab" or name.startswith("normlab.")]
    return {name: sys.modules.pop(name) for name in names}
