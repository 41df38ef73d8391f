"""What the kernels in Triton share: how they are launched, how tensors are addressed, the gradient of an RMSNorm.

Any width, float32, bfloat16 and float16; statistics and sums in float32. Sums over tokens are partial sums of a fixed
number of programs, added in order: no atomics, so a result repeats. Imported only where a device needs it (ops/depth.py).
The kernels' tests run in Triton's interpreter and through its compiler for sm80, sm90 and sm100: no GPU was at hand, and
nothing here was timed on one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

FUSE = {"enable_fp_fusion": True}


def block_of(d: int) -> int:
    return max(16, int(triton.next_power_of_2(d)))


def warps_of(block: int) -> int:
    """Sixteen numbers of each row to a thread, as far as warps go."""
    return max(1, min(16, block // 512))


def programs_of(x: Tensor, tokens: int) -> int:
    """Programs that share the tokens where sums over tokens are kept: each holds one partial sum."""
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
    return max(1, min(tokens, 2 * processors))


def aligned(*numbers: int) -> bool:
    return all(number % 16 == 0 for number in numbers)


def deltas(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Where tensors begin, counted in numbers from the first: a tile of rows can then be addressed as one."""
    return tuple((t.data_ptr() - tensors[0].data_ptr()) // t.element_size() for t in tensors)


def rows_of(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


@triton.jit
def through_norm(up, row, scale, d):
    """The gradient of x in y = g x r, r = 1 / rms(x): `up` is g dy, `row` x, `scale` r."""
    return scale * up - row * (tl.sum(up * row) * scale * scale * scale / d)
