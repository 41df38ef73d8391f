"""Runs `normlab verify` on what others have published, and writes the table "Tried on" of docs/frontier.md.

Needs transformers, and `pip install hyper-connections attn-res` for the two packages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import torch

from normlab.testing import examine

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/frontier.md"
sys.path.insert(0, str(ROOT))


def package(name: str, place: str, attribute: str, *args: int, **options: int) -> Callable[[], object]:
    return lambda: getattr(import_module(f"{name}.{place}"), attribute)(*args, **options)


def decoder(name: str, *, start: bool = False) -> Callable[[], object]:
    def make() -> object:
        made = import_module("tests.conformance.decoders").DECODERS[name]()
        return import_module("tests.conformance.decoders").paper_start_(made) if start else made

    return make


HYPER = {"dim": 16, "layer_index": 1}
TRIED: list[tuple[str, str, Callable[[], object], str | None]] = [
    (
        "hyper-connections",
        "HyperConnections",
        package("hyper_connections", "hyper_connections", "HyperConnections", 4, **HYPER),
        "hyper_connections",
    ),
    (
        "hyper-connections",
        "mHC",
        package(
            "hyper_connections",
            "manifold_constrained_hyper_connections",
            "ManifoldConstrainedHyperConnections",
            4,
            **HYPER,
        ),
        "mhc",
    ),
    (
        "hyper-connections",
        "mHCv2",
        package("hyper_connections", "mHCv2", "ManifoldConstrainedHyperConnections", 4, **HYPER),
        "mhc",
    ),
    ("attn-res", "AttnResOperator", package("attn_res", "main", "AttnResOperator", 16), None),
    ("transformers", "DeepSeek-V4, its own start", decoder("deepseek_v4"), None),
    ("transformers", "DeepSeek-V4, the paper's start", decoder("deepseek_v4", start=True), None),
    ("transformers", "GLM-5-next, its own start", decoder("glm5_next"), None),
    ("transformers", "GLM-5-next, the paper's start", decoder("glm5_next", start=True), None),
    ("transformers", "HY-V4", decoder("hy_v4"), None),
    ("transformers", "Qwen4-Exp", decoder("qwen4_exp"), None),
    ("transformers", "ZAYA", decoder("zaya"), None),
]


def rows() -> Iterator[str]:
    yield "| package | what | against | verdict | what failed, and what it looks like |"
    yield "|---|---|---|---|---|"
    for name, what, make, scheme in TRIED:
        torch.manual_seed(0)
        found = examine(make(), scheme)
        failed = "; ".join(f"{f.seen}: {f.looks_like or 'unknown'}" for f in found.findings if not f.passed)
        verdict = "passes" if found.passed else "fails"
        yield f"| {name} {version(name)} | {what} | {found.scheme} | {verdict} | {failed} |"


if __name__ == "__main__":
    body = "\n".join(rows())
    mark = r"(<!-- tried -->\n).*?(<!-- /tried -->)"
    DOCUMENT.write_text(re.sub(mark, rf"\g<1>{body}\n\g<2>", DOCUMENT.read_text(), flags=re.DOTALL))
