"""What a residual path costs on a device that need not be here: rows and operations counted, times by a roofline.

    step = max( arithmetic / (peak x utilisation), operations x launch )        pre_norm of the same shape
    overhead = ( rows beyond pre_norm / bandwidth ) / step, and where launches are the limit, their excess

Three forms. *Fused*: our kernels, counted. *Eager*: the same schemes by PyTorch's own operations, counted. *Compiled*: our
operations in a graph of torch.compile, which takes a branch's norm apart and adds gradients in passes of its own: six rows
more than fused, where a scheme has something to fuse. No number here was measured on a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from normlab.errors import ConfigError, unknown
from normlab.model.config import TransformerConfig
from normlab.model.transformer import Transformer
from normlab.observe.rows import BASE, Traffic, traffic
from normlab.report.tables import Row
from normlab.schemes import label
from normlab.schemes.ops.depth import by_plain_operations

APART = 6.0  # rows: h written and read again, its gradient too, and two for the gradient that is added apart


@dataclass(frozen=True)
class Hardware:
    """Bytes and FLOPs for each second; what of them is reached; seconds between two launches."""

    name: str
    bandwidth: float
    peak: float
    reached_bandwidth: float
    reached_peak: float
    launch: float
    source: str

    @property
    def memory(self) -> float:
        return self.bandwidth * self.reached_bandwidth

    @property
    def compute(self) -> float:
        return self.peak * self.reached_peak

    @property
    def ridge(self) -> float:
        """FLOPs for each byte at which memory and arithmetic take as long."""
        return self.compute / self.memory


SHEET = "data sheet (SXM, bfloat16, dense), of which a good training run reaches half"
HARDWARE = {
    "h100": Hardware("h100", 3.35e12, 989e12, 0.88, 0.5, 5e-6, SHEET),
    "a100": Hardware("a100", 2.04e12, 312e12, 0.88, 0.5, 5e-6, SHEET),
}
NAMES = (*HARDWARE, "cpu")


def hardware(name: str) -> Hardware:
    """A device by its name; `cpu` is this machine, measured now."""
    if name == "cpu":
        return measure_cpu()
    if name not in HARDWARE:
        raise ConfigError(unknown("hardware", name, NAMES))
    return HARDWARE[name]


def measure_cpu(*, megabytes: int = 64, size: int = 768, repeats: int = 5) -> Hardware:
    """Bandwidth of a copy and rate of a float32 product, the best of a few."""
    x, a = torch.ones(megabytes << 18), torch.randn(size, size)
    y, c = torch.empty_like(x), torch.empty_like(a)
    bandwidth = 2 * x.numel() * 4 / _best(lambda: y.copy_(x), repeats)
    rate = 2 * size**3 / _best(lambda: torch.mm(a, a, out=c), repeats)
    threads = torch.get_num_threads()
    return Hardware(
        "cpu", bandwidth, rate, 1.0, 1.0, 5e-6, f"measured now: a copy and a float32 product, {threads} threads"
    )


def _best(run: Callable[[], object], repeats: int) -> float:
    found = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return max(min(found[1:]), 1e-9)


@dataclass(frozen=True)
class Form:
    """Beyond pre_norm, for each sublayer: rows and operations; the share of a training step that they cost."""

    rows: float
    operations: float
    overhead: float


@dataclass(frozen=True)
class Prediction:
    """`counted`: rows of the counter for a training step beyond pre_norm, which the fused form takes as they are."""

    scheme: str
    hardware: str
    forward_rows: float
    backward_rows: float
    eager: Form
    compiled: Form
    fused: Form
    intensity: float  # FLOPs of the residual path for each byte that it moves


def prediction_rows(found: Sequence[Prediction]) -> list[Row]:
    """A line a scheme: rows and operations beyond pre_norm for each sublayer, and the overhead in each form."""

    def cells(form: Form) -> str:
        return f"{form.overhead:+.1%} ({form.rows:.1f}, {form.operations:.0f})"

    return [
        {
            "scheme": one.scheme,
            "rows forward": f"{one.forward_rows:.1f}",
            "rows backward": f"{one.backward_rows:.1f}",
            "eager": cells(one.eager),
            "compiled (estimate)": cells(one.compiled),
            "fused": cells(one.fused),
        }
        for one in found
    ]


def predict(
    config: TransformerConfig, machine: Hardware, *, tokens: int, length: int, dtype: torch.dtype
) -> Prediction:
    """The overhead of a scheme over pre_norm of the same shape."""
    base_config = TransformerConfig.from_dict({**config.to_dict(), "scheme": {"name": BASE}})
    base, ours = (traffic(one, tokens=tokens, length=length, dtype=dtype) for one in (base_config, config))
    with by_plain_operations():
        plain_base, plain = (traffic(one, tokens=tokens, length=length, dtype=dtype) for one in (base_config, config))
    with torch.device("meta"):
        model = Transformer(base_config)
    count, row = len(model.sites), tokens * config.dim * dtype.itemsize
    work = model.flops_per_token(length, training=True) * tokens
    fused, eager = ours.beyond(base), plain.beyond(plain_base)
    if fused.training.rows > eager.training.rows:  # nothing of this scheme is fused: only the base is
        fused, base = eager, plain_base
    apart = APART if fused is not eager and fused.training.rows > 0.5 else 0.0
    added = fused.training.rows + apart

    def form(rows: float, operations: float, of: Traffic) -> Form:
        launched = of.training.operations * count * machine.launch
        step = max(work / machine.compute, launched)
        longer = max(
            work / machine.compute + rows * count * row / machine.memory, launched + operations * count * machine.launch
        )
        return Form(rows, operations, longer / step - 1)

    moved = (max(fused.training.rows, 0.0) + RESIDUAL_ROWS) * count * row
    return Prediction(
        scheme=label(config.scheme),
        hardware=machine.name,
        forward_rows=fused.forward.rows,
        backward_rows=fused.backward.rows,
        eager=form(eager.training.rows, eager.training.operations, plain_base),
        compiled=form(added, fused.training.operations, base),
        fused=form(fused.training.rows, fused.training.operations, base),
        intensity=3 * config.scheme.mixing_flops(model.scheme.frame) * tokens / moved,
    )


RESIDUAL_ROWS = 9.0  # of pre_norm itself: the addition and the norm, forwards 5 and backwards 4


def roofline(machine: Hardware, found: Sequence[Prediction], *, width: int = 56, height: int = 9) -> list[str]:
    """The roof in letters: FLOPs for each byte from left to right, reachable FLOP/s from below; both logarithmic."""
    low, high = -2.0, max(4.0, math.log10(machine.ridge) + 1)
    top, bottom = math.log10(machine.compute), math.log10(machine.memory) + low

    def column(intensity: float) -> int:
        at = (math.log10(max(intensity, 10**low)) - low) / (high - low)
        return min(width - 1, round(at * (width - 1)))

    def line(intensity: float) -> int:
        reach = math.log10(min(machine.compute, intensity * machine.memory))
        return min(height - 1, max(0, round((reach - bottom) / (top - bottom) * (height - 1))))

    grid = [[" "] * width for _ in range(height)]
    for x in range(width):
        intensity = 10 ** (low + x / (width - 1) * (high - low))
        grid[line(intensity)][x] = "-" if intensity > machine.ridge else "/"
    for n, one in enumerate(found):
        grid[line(max(one.intensity, 10**low))][column(one.intensity)] = chr(ord("A") + n % 26)
    lines = ["".join(cells).rstrip() for cells in reversed(grid)]
    lines[0] += f"   {machine.compute / 1e12:.3g} TFLOP/s, from {machine.ridge:.0f} FLOPs a byte on"
    lines.append("".join("+" if x in (0, column(1.0), width - 1) else "." for x in range(width)))
    lines.append(
        f"{10**low:g} FLOPs a byte".ljust(column(1.0)) + "1".ljust(width - column(1.0) - 5) + f"{10**high:.0f}"
    )
    return lines + [
        f"{chr(ord('A') + n % 26)}  {one.scheme}: {one.intensity:.2g} FLOPs a byte" for n, one in enumerate(found)
    ]
