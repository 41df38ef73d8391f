"""The gradient of the last FFN over the width: Xiong et al. bound it by O(d sqrt(ln d)), and it stays far below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normlab.errors import ConfigError
from normlab.results import Plain, as_row
from normlab.schemes import SchemeConfig, label, parse_scheme
from normlab.stats import power_law
from normlab.theory.mean_field import MeanFieldSetting, at_depth


@dataclass(frozen=True)
class WidthSweep:
    """Frobenius norm of the gradient of the last FFN's second matrix at one depth, by width."""

    scheme: str
    depth: int
    dims: list[int]
    gradients: list[float]

    @property
    def exponent(self) -> float:
        return power_law(self.dims, self.gradients)

    @property
    def bound_exponent(self) -> float:
        """That of d sqrt(ln d) over the same widths."""
        return power_law(self.dims, [d * math.sqrt(math.log(d)) for d in self.dims])

    def to_dict(self) -> dict[str, Plain]:
        return {**as_row(self), "exponent": self.exponent, "bound_exponent": self.bound_exponent}


def width_sweep(
    scheme: str | SchemeConfig, dims: Sequence[int], setting: MeanFieldSetting | None = None, *, depth: int = 8
) -> WidthSweep:
    setting = setting or MeanFieldSetting()
    widths = sorted(set(dims))
    if len(widths) < 2:
        raise ConfigError(f"an exponent in the width needs two widths or more; got {list(dims)}")
    config = parse_scheme(scheme)
    found = [at_depth(config, setting.replace(dim=d), depth).down[-1] for d in widths]
    return WidthSweep(label(config), depth, widths, found)
