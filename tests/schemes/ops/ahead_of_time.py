"""Triton's kernels through its compiler, for GPUs that are not here: registers, spills and vector loads.

The loads of a thread are those of the formula: a row of `block` numbers is block * bytes / (16 * threads) loads of 16 bytes.
More would mean that a source is read twice, or that loads are not vectors.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from normlab.schemes.ops import attend_triton as attend
from normlab.schemes.ops import depth_triton as depth
from normlab.schemes.ops import streams_triton as streams

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
HALF, REAL, WHOLE, LONG, SCALAR = "*bf16", "*fp32", "i32", "i64", "fp32"
SOURCES, QUERIES, STREAMS = 9, 8, 4


@dataclass(frozen=True)
class Case:
    """A kernel, the types of its arguments by name, its constants, and the loads that the formula says."""

    kernel: Any
    given: dict[str, Any]
    constants: dict[str, Any]
    warps: int
    loads: int


@dataclass(frozen=True)
class Compiled:
    registers: int
    spilled: int  # bytes of the stack
    loads: int  # of 16 bytes
    others: dict[str, int] = field(default_factory=dict)


def typed(kernel, constants, **given):
    """Arguments whose type follows from the name: rows are half precision, strides and sizes whole numbers."""
    halves = {
        "x", "y", "dy", "gain", "dx", "through", "o", "b", "h", "grad", "grad_o", "db", "out", "grads", "v", "dv",
    }  # fmt: skip
    whole = {"d", "tokens", "stride", "count", "share"}
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            continue
        is_whole = name in whole or name.endswith(("_stride", "_token", "_stream"))
        is_number = name.endswith("eps") or name in ("mass", "whole")
        types[name] = WHOLE if is_whole else SCALAR if is_number else HALF if name in halves else REAL
    return types | given


def cases(d: int) -> list[Case]:
    block, n = depth.block_of(d), SOURCES
    warps = depth.warps_of(block)
    row, wide, few = {"BLOCK": block}, depth.width_of(d, QUERIES), min(8, warps)
    per, fewer = block * 2 // (512 * warps), block * 2 // (512 * few)  # loads of a row of bfloat16; float32 has twice
    chunk, tile = wide * 2 // 512 // 4, min(block, 1024) * 2 // 512 // 4
    writes = {"MIXED": True, "N": STREAMS, "WIDTH": min(block, 1024)}
    many = {"sources": (HALF,) * n, "down": (HALF,) * n, "through": (HALF,) * n}
    found = [
        Case(depth._rms_forward, {}, row, warps, 2 * per),
        Case(depth._rms_backward, {}, row | {"PAST": True}, warps, 4 * per),
        # o, b and the gain; the query is float32
        Case(attend._merge_forward, {}, row | {"NORMED": True, "NORM": True}, warps, (3 + 2) * per),
        # the gradient, o, b twice, what came past, the gain; the query
        Case(attend._merge_backward, {}, row | {"NORMED": True, "NORM": True, "PAST": True}, warps, (6 + 2) * per),
        Case(
            attend._attend_forward, {"logits": (REAL,) * n, "steps": (WHOLE,) * n, "sources": (HALF,) * n},
            row | {"N": n, "NORM": True}, warps, (n + 1) * per,
        ),
        # the sources twice (h again, then their products), of which the last is still there; past but for the first
        Case(
            attend._attend_backward, many,
            row | {"N": n, "NORM": True, "LEAN": block > 4096, "PAST": (False,) + (True,) * (n - 1)},
            few, (2 * n - 1 + 2 + n - 1) * fewer + (2 + 1) * fewer * (block > 4096),
        ),
        Case(
            depth._mix_forward, {"sources": (HALF,) * n, "strides": (WHOLE,) * n, "places": (LONG,) * QUERIES},
            {"N": n, "S": QUERIES, "MANY": 16, "SOME": 8, "WIDTH": wide, "ALIGNED": True}, 4, n * chunk,
        ),
        # sources and what came past once, every query's gradient once; the weights are eight numbers for each source
        Case(
            depth._mix_backward,
            many | {"strides": (WHOLE,) * 2 * n, "starts": (LONG,) * QUERIES, "steps": (WHOLE,) * QUERIES}
            | {"past_strides": (WHOLE,) * n},
            {"PAST": (True,) * n, "N": n, "S": QUERIES, "SOME": 8, "WIDTH": wide, "ALIGNED": True}, 4,
            (2 * n + QUERIES) * chunk + 2 * n,
        ),
        Case(streams._read_forward, {}, row | {"N": STREAMS}, warps, (STREAMS + 1) * per),
        # streams twice, but for the last; the gradient, what came past, the gain
        Case(streams._read_backward, {}, row | {"N": STREAMS, "PAST": True}, warps, (3 * STREAMS + 1) * per),
        # the weights of a write are four numbers for each stream
        Case(streams._write_forward, {}, writes, 4, (STREAMS + 1) * tile + 1),
        Case(streams._write_backward, {}, writes, 4, (2 * STREAMS + 1) * tile + 1),
    ]  # fmt: skip
    return [Case(c.kernel, typed(c.kernel, c.constants, **c.given), c.constants, c.warps, c.loads) for c in found]


def compiled(case: Case, capability: int) -> Compiled:
    signature, hints = {}, {}
    for i, name in enumerate(case.kernel.arg_names):
        kind = "constexpr" if name in case.constants else case.given[name]
        signature[name] = kind
        for j, one in enumerate(kind if isinstance(kind, tuple) else (kind,)):
            if one.startswith("*") or one in (WHOLE, LONG):
                hints[(i, j) if isinstance(kind, tuple) else (i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=case.constants, attrs=hints)
    options = {"num_warps": case.warps, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    numbers = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    loads = len(re.findall(r"ld\.global\.v4\.b32", made.asm["ptx"]))
    return Compiled(numbers["REG"], numbers["STACK"] + numbers["LOCAL"], loads)
