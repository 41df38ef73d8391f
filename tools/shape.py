"""The shape of the source in numbers: how untyped it is, how wide its functions are, how full its folders.

    python tools/shape.py [FOLDER ...]        a column for each source tree (default: this one)

Counted on the syntax tree. `--by-room` splits the first tree's counts by folder.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
WANTED = {
    "string subscripts": "< 200", "dict[str, Any]": "< 60", "Any": "< 300", "functions with more than 8 arguments": "<= 2",
    "cycles with lazy imports": "<= 2", "folders with more than 12 files (schemes: 24)": "<= 0",
    "modules mirrored by a test, %": ">= 75", "class names that mean two things": "<= 0", "lines": "fewer",
}  # fmt: skip
ROOMY = {"schemes": 24}
ONE_IDEA = {"MonitorCallback"}  # in Hugging Face's trainer and in Lightning's: nl.hf and nl.lightning export it


def modules(tree: Path) -> dict[str, ast.Module]:
    """Dotted name -> syntax tree of every module below `tree`/src."""
    root = tree / "src"
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def untyped(tree: ast.Module) -> Counter[str]:
    count: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            constant = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            count["string subscripts"] += constant
            count["dict[str, Any]"] += ast.unparse(node) == "dict[str, Any]"
        elif isinstance(node, ast.Name):
            count["Any"] += node.id == "Any"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not is_kernel(node):
            count["functions with more than 8 arguments"] += arguments(node) > 8
    return count


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A Triton kernel: it has pointers and strides for arguments, as C has, and no objects to put them in."""
    return any(ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list)


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many a caller may give: `self` does not count."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def imports(name: str, tree: ast.Module, known: set[str]) -> tuple[set[str], set[str]]:
    """(at import time, lazily): the modules of ours that this one asks for. Types alone do not count."""
    now: set[str] = set()
    later: set[str] = set()

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                target = whole if whole in known else node.module
                if target in known and target != name:
                    (later if lazy else now).add(target)
        if isinstance(node, ast.Import):
            (later if lazy else now).update(a.name for a in node.names if a.name in known and a.name != name)
        inner = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(tree, False)
    return now, later


def cycles(trees: dict[str, ast.Module]) -> list[tuple[str, str]]:
    """Lazy imports that close a circle: `a` imports `b` inside a function, and `b` needs `a` at import time."""
    known = set(trees)
    found = {name: imports(name, tree, known) for name, tree in trees.items()}

    def reaches(start: str, end: str) -> bool:
        seen, todo = {start}, [start]
        while todo:
            for target in found[todo.pop()][0]:
                if target == end:
                    return True
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return False

    return sorted((a, b) for a, (_, later) in found.items() for b in later if reaches(b, a))


def full_folders(tree: Path) -> list[str]:
    folders = Counter(path.parent for path in (tree / "src").rglob("*.py"))
    return [
        f"{folder.name} ({count})"
        for folder, count in sorted(folders.items())
        if folder.name != "cli" and count > ROOMY.get(folder.name, 12)
    ]


def mirrored(tree: Path, trees: dict[str, ast.Module]) -> tuple[int, list[str]]:
    """Share of the modules that have a test of their name in the same folder of `tests`, and those that have none."""
    tests = {path.relative_to(tree / "tests").as_posix() for path in (tree / "tests").rglob("test_*.py")}
    missing, total = [], 0
    for name in trees:
        *folders, leaf = name.split(".")[1:] or [""]
        path = tree / "src" / Path(*name.split("."))
        if path.is_dir() or leaf.startswith("__") or not leaf:
            continue
        total += 1
        if "/".join([*folders, f"test_{leaf.lstrip('_')}.py"]) not in tests:
            missing.append(name)
    return round(100 * (total - len(missing)) / max(total, 1)), missing


def doubled(trees: dict[str, ast.Module]) -> list[str]:
    """Classes at the top of a module whose name another module has too, private ones among them."""
    names = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1 and name not in ONE_IDEA)


def measure(tree: Path) -> dict[str, int]:
    trees = modules(tree)
    total: Counter[str] = Counter()
    for module in trees.values():
        total += untyped(module)
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (tree / "src").rglob("*.py"))
    return {
        **{key: total[key] for key in list(WANTED)[:4]},
        "cycles with lazy imports": len(cycles(trees)),
        "folders with more than 12 files (schemes: 24)": len(full_folders(tree)),
        "modules mirrored by a test, %": mirrored(tree, trees)[0],
        "class names that mean two things": len(doubled(trees)),
        "lines": lines,
    }


def holds(value: int, wanted: str) -> bool:
    """A wish without a number holds always."""
    sign, _, limit = wanted.partition(" ")
    tests = {"<": value.__lt__, "<=": value.__le__, ">=": value.__ge__}
    return sign not in tests or tests[sign](int(limit))


def by_room(tree: Path) -> None:
    rooms: dict[str, Counter[str]] = {}
    for name, module in modules(tree).items():
        room = ".".join(name.split(".")[1:3]) or "normlab"
        rooms.setdefault(room, Counter()).update(untyped(module))
    for room, count in sorted(rooms.items(), key=lambda item: -item[1]["string subscripts"]):
        print(f"{room:<40}", "  ".join(f"{key}: {count[key]}" for key in list(WANTED)[:4]))


def main(arguments: list[str]) -> None:
    trees = [Path(a) for a in arguments if not a.startswith("--")] or [HERE]
    if "--by-room" in arguments:
        by_room(trees[0])
        return
    columns = [measure(tree) for tree in trees]
    for key, wanted in WANTED.items():
        broken = "" if holds(columns[-1][key], wanted) else "   BROKEN"
        print(f"{key:<48}", *(f"{column[key]:>8}" for column in columns), f"   wanted {wanted}{broken}")
    last = trees[-1]
    for pair in cycles(modules(last)):
        print("  lazy:", " -> ".join(pair))
    for folder in full_folders(last):
        print("  full:", folder)
    for name in doubled(modules(last)):
        print("  two classes:", name)
    if "--verbose" in arguments:
        print("  no test of their name:", ", ".join(mirrored(last, modules(last))[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
