"""The source keeps its shape: the limits that `tools/shape.py` prints are held, not only printed."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def shape():
    spec = importlib.util.spec_from_file_location("shape", ROOT / "tools" / "shape.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_limit_is_held(shape):
    """As they are written, however long the source has become."""
    found = shape.measure(ROOT)
    assert sum(wanted[0] in "<>" for wanted in shape.WANTED.values()) == 8
    broken = {key: (found[key], wanted) for key, wanted in shape.WANTED.items() if not shape.holds(found[key], wanted)}
    trees = shape.modules(ROOT)
    seen = {"folders": shape.full_folders(ROOT), "cycles": shape.cycles(trees), "two classes": shape.doubled(trees)}
    assert not broken, (broken, seen)


def test_the_counter_counts(shape, tmp_path):
    """A tree with one of each fault has one of each."""
    package = tmp_path / "src" / "normlab"
    package.mkdir(parents=True)
    (package / "one.py").write_text(
        "from typing import Any\n"
        "def wide(a, b, c, d, e, f, g, h, i) -> dict[str, Any]:\n    from normlab import two\n    return two.x['key']\n"
    )
    (package / "kernel.py").write_text("@triton.jit\ndef wide(a, b, c, d, e, f, g, h, i): pass\n")  # does not count
    (package / "two.py").write_text("from normlab import one\nx = {}\nclass Row: pass\nclass MonitorCallback: pass\n")
    (package / "three.py").write_text("class Row: pass\nclass Column: pass\nclass MonitorCallback: pass\n")
    (tmp_path / "tests").mkdir()
    found = shape.measure(tmp_path)
    assert found["string subscripts"] == found["dict[str, Any]"] == found["Any"] == 1
    assert found["functions with more than 8 arguments"] == found["cycles with lazy imports"] == 1
    assert found["modules mirrored by a test, %"] == 0
    assert (found["class names that mean two things"], shape.doubled(shape.modules(tmp_path))) == (1, ["Row"])


@pytest.mark.parametrize(
    ("value", "wanted", "held"),
    [(199, "< 200", True), (200, "< 200", False), (2, "<= 2", True), (3, "<= 2", False), (74, ">= 75", False)],
)
def test_a_limit_is_the_number_that_it_names(shape, value, wanted, held):
    assert shape.holds(value, wanted) is held
