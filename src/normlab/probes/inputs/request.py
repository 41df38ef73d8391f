"""What a diagnosis is asked to measure: one frozen object, handed on as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from normlab.probes.inputs.losses import Loss


@dataclass(frozen=True)
class DiagnoseOptions:
    """How much to measure. The defaults take about a minute for 125M parameters on a CPU."""

    loss: str | Loss | Callable[[nn.Module, object], Tensor] = (
        "auto"  # causal, masked, contrastive, none, or a function
    )
    mask_id: int | None = None
    special_ids: tuple[int, ...] = ()  # [CLS], [SEP], ...: the masked loss leaves them alone
    attention: bool = True
    lengths: tuple[int, ...] | None = None  # None: 64, 128, ... up to the limit of the model and of the text
    longest: int = 1024
    gradient_tokens: int = 1024
    skips: bool = True
    skip_tokens: int | None = None  # None: 512, or 384 of a large model
    seed: int = 0
    max_seconds: float | None = None  # from then on nothing optional begins: lengths, gradients, skips
