"""Run every benchmark of this folder: each module with a `main(argv)` that returns its results as a dict."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.timing import arguments
from normlab.report import print_json


def names() -> list[str]:
    """Modules that can be run; helpers (no `main`) are left out."""
    found = sorted(info.name for info in pkgutil.iter_modules(benchmarks.__path__) if not info.name.startswith("_"))
    return [name for name in found if hasattr(importlib.import_module(f"benchmarks.{name}"), "main")]


def main(argv: list[str] | None = None) -> int:
    parser = arguments("every benchmark, or those that are named")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
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
    results = {}
    for name in given.names or names():
        results[name] = importlib.import_module(f"benchmarks.{name}").main(passed_on)
    if given.json:
        print_json(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
