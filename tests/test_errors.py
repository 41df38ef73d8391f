import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from normlab.cli.env import EXTRAS
from normlab.errors import (
    ConfigError,
    DamagedError,
    InputError,
    MissingDependencyError,
    NormlabError,
    canonical,
    install_command,
    nearest,
    need,
    require,
    unknown,
)


def test_one_fault_is_a_sentence_and_several_are_numbered():
    assert str(ConfigError(faults=[("model.depth", "too small")])) == "model.depth: too small"
    both = ConfigError(faults=[("depth", "too small"), ("", "no scheme")])
    assert str(both) == "(1) depth: too small; (2) no scheme"
    assert both.faults == (("depth", "too small"), ("", "no scheme"))


def test_names_forgive_dashes_and_case_and_the_nearest_is_given_as_it_is_spelled():
    assert canonical(" Pre-Norm ") == "pre_norm"
    assert nearest("PRE-NROM", ["post_norm", "pre_norm"]) == "pre_norm"
    assert nearest("zzz", ["post_norm"]) is None


def test_the_sentence_for_an_unknown_name():
    found = unknown("scheme", "peri", ["pre_norm", "peri_norm"], hint="see the list")
    assert found == "unknown scheme 'peri'; did you mean 'peri_norm'? (valid: peri_norm, pre_norm; see the list)"
    assert "(valid: 20 names)" in unknown("number", "zzz", map(str, range(20)))


def test_a_missing_package_says_how_to_install_it():
    for ask in (require, need):
        with pytest.raises(MissingDependencyError, match=r"this test needs the package 'absent_package'.*pip install"):
            ask("absent_package.inner", extra="theory", purpose="this test")
    assert require("json.decoder", extra="none", purpose="this test").JSONDecoder


def test_what_is_there_is_found_without_importing_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    need("json.decoder", "antigravity", extra="none", purpose="this test")
    assert "antigravity" not in sys.modules
    monkeypatch.setitem(sys.modules, "antigravity", None)
    with pytest.raises(MissingDependencyError, match="'antigravity'"):
        need("json", "antigravity", extra="none", purpose="this test")


def test_the_install_command_names_packages_and_never_normlab(monkeypatch):
    """normlab is on no index: `pip install normlab` would fail, or bring somebody else's package."""
    lines = ["torch>=2.6", 'plotly>=5.22; extra == "report"', "jinja2>=3.1 ; extra == 'report'",
             "scipy; (python_version > '3') and extra == 'theory'", "x; extra == 'report-more'"]  # fmt: skip
    monkeypatch.setattr(importlib.metadata, "requires", {"normlab": lines}.get)
    assert install_command("report") == 'pip install "plotly>=5.22" "jinja2>=3.1"'
    assert install_command("theory") == 'pip install "scipy"'
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: None)
    assert install_command("report") == 'pip install -e ".[report]" in a clone of normlab'


def test_every_extra_that_a_sentence_names_exists():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    root = Path(__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'(?:require|need)\(.*extra="(\w+)"', text)} | set(EXTRAS)
    assert {"report", "hf", "theory", "gguf", "ray", "watch"} <= named <= set(extras)


def test_nothing_pretends_to_be_on_an_index():
    """Neither what we print nor what we write for readers."""
    root = Path(__file__).parents[1]
    texts = [path for room in ("src", "docs", "examples", "tools") for path in (root / room).rglob("*")]
    texts = [path for path in [*texts, *root.glob("*.md")] if path.suffix in (".py", ".md", ".sh")]
    assert len(texts) > 300
    for path in texts:
        if path.name not in ("CHANGELOG.md", "LOG.md"):
            assert not re.search(r"pip install ['\"]?normlab", path.read_text(encoding="utf-8")), path


def test_one_tree_that_pythons_own_handlers_catch_too():
    for kind, plain in ((ConfigError, ValueError), (InputError, ValueError), (DamagedError, InputError)):
        assert issubclass(kind, NormlabError)
        assert issubclass(kind, plain)
