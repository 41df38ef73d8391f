"""Imports point down only, the public names are there, and `import normlab` stays cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import normlab

SOURCE = Path(normlab.__file__).parent
# Higher rooms may import lower ones, never their own rank's other rooms or higher.
RANKS = {
    "errors": -1, "files": 0, "plugins": 0, "cards": 1, "config": 1, "numbers": 1, "stats": 1, "store": 2, "results": 2,
    "report": 2,
    "schemes": 3, "model": 4, "tasks": 5, "observe": 5, "testing": 6,
    "training": 6, "probes": 6.5, "dynamics": 6, "theory": 6,
    "surgery": 6.8, "experiments": 7, "integrations": 7,
    "hf": 8, "ui": 8, "cli": 9,
}  # fmt: skip
# Optional packages, and the one module that may import each.
LONE_IMPORTS = {"ray", "lightning", "starlette"}
LEAVES = {"report", "config", "files", "errors", "numbers", "stats", "results"}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_rooms(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("normlab."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "normlab":
            found.update(alias.name for alias in node.names if alias.name in RANKS)
        elif isinstance(node, ast.Import):
            found.update(a.name.split(".")[1] for a in node.names if a.name.startswith("normlab."))
    return found


MODULES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path):
    here = room(path)
    if here in ("__init__", "__main__"):
        return
    assert here in RANKS, f"give {here!r} a rank here, and a room in the design"
    for there in imported_rooms(ast.parse(path.read_text())) - {here}:
        assert RANKS[there] < RANKS[here], f"{path.name} ({here}) imports normlab.{there}, which is not below it"


def test_the_rule_sees_an_upward_import():
    upward = ast.parse("def f():\n    from normlab.model import Transformer\n")
    assert imported_rooms(upward) == {"model"}
    assert RANKS["model"] > RANKS["schemes"]


@pytest.mark.parametrize("package", sorted(LONE_IMPORTS))
def test_heavy_packages_are_imported_in_one_module(package):
    users = [
        p.name
        for p in MODULES
        for node in ast.walk(ast.parse(p.read_text()))
        if (isinstance(node, ast.Import) and any(a.name.split(".")[0] == package for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package)
    ]
    assert len(set(users)) <= 1, f"{package} is imported in {sorted(set(users))}"


def test_every_public_name_resolves():
    for name in normlab.__all__:
        assert getattr(normlab, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Transfomer'"):
        _ = normlab.Transfomer


@pytest.mark.parametrize(
    "code",
    ["import normlab", "import normlab.cli", "from normlab.cli import run; run(['--help'])", "import normlab.config"],
)
def test_import_budget(code):
    """No torch, transformers or plotly for `import normlab` and `normlab --help`."""
    heavy = ("torch", "transformers", "plotly", "scipy", "pandas", "ray")
    script = f"{code}\nimport sys\nprint('LOADED', [m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("LOADED []"), done.stdout[-200:]


def test_no_machine_paths_or_registry_hosts_in_the_tree():
    words = ("/wo" + "rk/", "/ro" + "ot/", "pypi" + ".org", "pytorch" + ".org/whl", "files.python" + "hosted")
    for path in (*SOURCE.rglob("*"), *SOURCE.parents[1].glob("*.*"), *SOURCE.parents[1].glob("docs/**/*.md")):
        if path.suffix in (".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".html", ".json"):
            text = path.read_text(encoding="utf-8")
            assert not any(word in text for word in words), path
