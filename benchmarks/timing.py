"""What every benchmark shares: its options, and the table of ratios. The timer itself is `normlab.observe.timing`."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

import torch

from normlab.observe.hardware import measure_cpu
from normlab.observe.timing import Times, ratio
from normlab.report import console, table
from normlab.schemes import depth_kernels
from normlab.training.record import Conditions

Rounds = Mapping[str, Times]  # by candidate


def arguments(what: str) -> argparse.ArgumentParser:
    """The options of every benchmark."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--rounds", type=int, default=None, help="times each candidate runs (default: the benchmark's)")
    parser.add_argument(
        "--quick", action="store_true", help="few rounds and small shapes: all benchmarks in ten minutes"
    )
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    return parser


def machine() -> dict[str, str | int | float]:
    """Where this is run, because every ratio depends on it: bandwidth of a copy, rate of a product."""
    here, measured = Conditions.here(torch.device("cpu")), measure_cpu()
    return {
        "processor": here.processor,
        "threads": torch.get_num_threads(),
        "copy, GB/s": round(measured.bandwidth / 1e9, 1),
        "float32 product, GFLOP/s": round(measured.peak / 1e9, 1),
        "torch": torch.__version__,
        "C kernels": depth_kernels.state(),
    }


def ratios(seconds: Rounds, ours: str) -> dict[str, dict[str, float]]:
    """Of each other candidate: time of `ours` over its time (below 1: ours is faster), and its own milliseconds."""
    found = {}
    for name, theirs in seconds.items():
        wall = ratio(seconds[ours].wall, theirs.wall)
        found[name] = {
            "milliseconds": 1e3 * statistics.median(theirs.wall),
            "ratio": wall.middle,
            "ratio_low": wall.low,
            "ratio_high": wall.high,
            "processor_ratio": ratio(seconds[ours].processor, theirs.processor).middle,
        }
    return found


def show(title: str, found: Mapping[str, Mapping[str, Any]], ours: str) -> None:
    """`ratios`, with further columns if there are any, as a table."""
    known = {"milliseconds", "ratio", "ratio_low", "ratio_high", "processor_ratio"}
    rows = [
        {
            "candidate": name,
            "ms (median)": round(row["milliseconds"], 2),
            f"{ours} / it": "-" if name == ours else f"{row['ratio']:.3f}",
            "quartiles": "-" if name == ours else f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}",
            "processor time": "-" if name == ours else f"{row['processor_ratio']:.3f}",
            **{key: value for key, value in row.items() if key not in known},
        }
        for name, row in found.items()
    ]
    console().print(table(rows, title=title))
