"""Modules with schemes of somebody's own, and processes that have never heard of them."""

import os
import subprocess
import sys

MODULE = """
import os
from pathlib import Path
from typing import Literal

from normlab.schemes import SCHEMES, register


@register
class Own(SCHEMES["pre_norm"]):
    name: Literal["own_norm"] = "own_norm"


Path(os.environ.get("IMPORTED_MARK", os.devnull)).write_text("imported")
"""


def package(folder, source=MODULE, *, entry="own_plugin:Own"):
    """An installed package with an entry point, as a folder for the path of modules."""
    (folder / "own_plugin.py").write_text(source)
    meta = folder / "own_plugin-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: own-plugin\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(f"[normlab.schemes]\nown = {entry}\n")
    return folder


def fresh(*words, cwd, path=(), code="from normlab.cli import main; main()", **environment):
    """`normlab WORDS`, or other code, in a process of its own that starts in `cwd` and does not look for modules there."""
    places = [*map(str, path), *(place for place in sys.path if place)]
    own = {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], cwd=cwd, env={**os.environ, **own, **environment},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
