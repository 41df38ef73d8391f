"""Forward and backward pass of our RMSNorm against torch's, and against torch's LayerNorm, which has a CPU kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import arguments, ratios, show
from normlab.observe.timing import interleave
from normlab.report import print_json
from normlab.schemes.norms import rms_norm

OURS = "normlab rms_norm"
SHAPES = ((4, 256, 256), (8, 128, 128), (2, 256, 1024))  # batch, time, width


def candidates(shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    x, dy = torch.randn(shape, requires_grad=True), torch.randn(shape)
    weight = (torch.rand(shape[-1]) + 0.5).requires_grad_()

    def both_passes(norm: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(norm(x, weight), (x, weight), dy)

    return {
        OURS: both_passes(lambda x, weight: rms_norm(x, weight, 1e-6)),
        "torch rms_norm": both_passes(lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-6)),
        "torch layer_norm": both_passes(lambda x, weight: F.layer_norm(x, weight.shape, weight, weight, 1e-6)),
    }


def main(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "").parse_args(argv)
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    for shape in SHAPES:
        name = " x ".join(map(str, shape))
        results[name] = ratios(interleave(candidates(shape), rounds=options.rounds or 40, repeat=5), OURS)
        if not (options.quiet or options.json):
            show(f"norm, forward and backward, {name}, {results['threads']} thread(s)", results[name], OURS)
    if options.json:
        print_json(results)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
