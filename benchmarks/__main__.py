"""Run every benchmark of this folder: each module with a `main(argv)` that returns its results as a dict."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import benchmarks
from benchmarks._table import write
from benchmarks.timing import arguments, machine
from normlab.report import print_json


def names() -> list[str]:
    """Modules that can be run; helpers (no `main`) are left out."""
    found = sorted(info.name for info in pkgutil.iter_modules(benchmarks.__path__) if not info.name.startswith("_"))
    return [name for name in found if hasattr(importlib.import_module(f"benchmarks.{name}"), "main")]


def main(argv: list[str] | None = None) -> int:
    parser = arguments("every benchmark, or those that are named")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
    parser.add_argument("--table", type=Path, help="a Markdown file for all that was found, with the machine")
    given, rest = parser.parse_known_args(argv)
    unknown = sorted(set(given.names) - set(names()))
    if unknown:
        parser.error(f"there is no benchmark called {', '.join(unknown)}; there are: {', '.join(names())}")
    passed_on = [
        *rest,
        *(["--rounds", str(given.rounds or 2)] if given.rounds or given.quick else []),
        *(["--quiet"] if given.json or given.quiet else []),
        *(["--quick"] if given.quick else []),
    ]
    results, failed = {}, {}
    for name in given.names or names():
        try:
            results[name] = importlib.import_module(f"benchmarks.{name}").main(passed_on)
        except Exception as fault:  # the others go on, and the table says so
            failed[name] = f"{type(fault).__name__}: {fault}"
            print(f"benchmark {name} failed: {failed[name]}", file=sys.stderr)
    if given.table is not None:
        print(f"table: {write(given.table, results, machine(), failed)}", file=sys.stderr)
    if given.json:
        print_json(results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
