"""The seesaw of norm placement at initialisation: what the stream does and what gradients do, layer by layer.

The setting is that of the mean-field theorem (`mean_field`, "paper" mode), with the loss taken at every position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from normlab.observe.gradients import last_over_first, matrix_gradients
from normlab.observe.portrait import rms, walk
from normlab.results import Plain, as_row
from normlab.schemes import label, parse_scheme
from normlab.stats import power_law
from normlab.theory.mean_field import MeanFieldSetting, build, run_branches


@dataclass(frozen=True)
class SeesawStart:
    """One random network: rms of the stream behind each layer, and the gradient of each layer's W1."""

    stream: tuple[float, ...]
    gradient: tuple[float, ...]


@dataclass(frozen=True)
class SeesawArm:
    """A scheme, averaged over draws (root mean squares)."""

    scheme: str
    stream: tuple[float, ...]
    gradient: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """p of stream ~ layer^p: 0 bounded, 1/2 for independent layers of one size."""
        return power_law(list(range(1, len(self.stream) + 1)), list(self.stream))

    @property
    def kept(self) -> float:
        """The first layer's gradient over the last's: below 1 gradients are lost on the way to the input."""
        return 1 / last_over_first(self.gradient)

    @property
    def sentence(self) -> str:
        grown = self.stream[-1] / self.stream[0]
        magnitude = f"grows {grown:.2g} times over {len(self.stream)} layers" if grown > 1.05 else "stays bounded"
        if self.kept < 1:
            gradient = f"is {1 / self.kept:.2g} times smaller than the last's: gradients are lost"
        else:
            gradient = f"is {self.kept:.2g} times the last's: gradients are kept"
        return f"{self.scheme}: the stream {magnitude}, and the first layer's W1 gradient {gradient}."

    def to_dict(self) -> dict[str, Plain]:
        return {**as_row(self), "exponent": self.exponent, "kept": self.kept, "sentence": self.sentence}


def start(scheme: str, *, depth: int, setting: MeanFieldSetting, seed: int) -> SeesawStart:
    """One draw of weights, inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    model = build(parse_scheme(scheme), setting, depth, generator)
    x = torch.randn(1, setting.tokens, setting.dim, generator=generator, dtype=torch.float64)
    readout = torch.randn(setting.dim, setting.vocabulary, generator=generator, dtype=torch.float64) / setting.dim**0.5
    targets = torch.randint(setting.vocabulary, (setting.tokens,), generator=generator)

    def loss() -> Tensor:
        return F.cross_entropy((run_branches(model, x) @ readout).flatten(0, 1), targets)

    with torch.no_grad():
        reads = walk(model, lambda: run_branches(model, x)).reads
    return SeesawStart(tuple(rms(h) for h in reads[2::2]), matrix_gradients(model, [loss]).up)


def seesaw(scheme: str, *, depth: int = 12, draws: int = 8, setting: MeanFieldSetting | None = None) -> SeesawArm:
    """A scheme's stream and gradients by layer."""
    setting = setting or MeanFieldSetting()
    found = [start(scheme, depth=depth, setting=setting, seed=setting.seed + draw) for draw in range(draws)]
    return SeesawArm(label(parse_scheme(scheme)), _mean(found, lambda s: s.stream), _mean(found, lambda s: s.gradient))


def _mean(found: Sequence[SeesawStart], of: Callable[[SeesawStart], tuple[float, ...]]) -> tuple[float, ...]:
    columns = zip(*map(of, found), strict=True)
    return tuple(math.sqrt(sum(v * v for v in column) / len(column)) for column in columns)
