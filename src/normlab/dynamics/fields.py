"""What a normalisation scheme does to a token on the sphere: the speed s and the radial growth r', as data.

A token is x = r theta with |theta| = 1, A is what attention pushes it with, and (arXiv 2510.22026, "Normalized
Attention dynamics")

    theta' = (1/s) (A - <theta, A> theta),        r' given by the scheme.

Every scheme of the paper, and those that we add, is one choice in each of three places:

    x' = c(t) A / |A|^q          q = 1 where the branch output is normalised (branch = "unit"), else 0;
                                 c(t) is a gain written on the branch,
    and the stream is put back on the sphere after each layer (stream = "unit": r' = 0, s = |A|^q / c)
    or left to grow (stream = "free": r' = c <theta, A> / |A|^q, s = r |A|^q / c).

So a row is data, rows can be integrated side by side in one batch, and closed forms hold for whole families.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from normlab.dynamics.expressions import formula
from normlab.errors import ConfigError, UnsupportedError, canonical, nearest

Array = Any  # a float or a numpy array: every rule below is elementwise


@dataclass(frozen=True)
class Gain:
    """c(t) = scale (t + 1)^power, with its integral: the clock on which gained schemes are ungained ones."""

    scale: float = 1.0
    power: float = 0.0

    def __call__(self, t: float) -> float:
        return self.scale * (t + 1.0) ** self.power if self.power else self.scale

    def integral(self, t: float) -> float:
        if self.power == -1.0:
            return self.scale * math.log1p(t)
        p = self.power + 1.0
        result: float = self.scale * ((t + 1.0) ** p - 1.0) / p
        return result


@dataclass(frozen=True)
class GainSchedule:
    """A gain given as a function of time; its integral is computed by quadrature where an oracle asks for it."""

    function: Callable[[float], float]

    def __call__(self, t: float) -> float:
        return float(self.function(t))

    def integral(self, t: float) -> float:
        from scipy.integrate import quad

        return float(quad(self.function, 0.0, t, limit=200, epsabs=0.0, epsrel=1e-12)[0])


@dataclass(frozen=True)
class Stage:
    """One row of the table. `values`: whether attention averages directions theta_k or raw tokens r_k theta_k.

    `logits` is the power of (t + 1) on the inverse temperature: 0 except where a scheme scales what q and k see.
    `heat` is a factor on it that varies with time: smaller query and key weights in early layers (see `heated`).
    """

    stream: Literal["unit", "free"]
    branch: Literal["raw", "unit"] = "raw"
    gain: Gain | GainSchedule = Gain()
    values: Literal["direction", "raw"] = "direction"
    logits: float = 0.0
    heat: GainSchedule | None = None

    def slowness(self, t: float, r: Array, size: Array) -> Array:
        """s, from the time, the radius and |A|."""
        s = (r if self.stream == "free" else 1.0) * (size if self.branch == "unit" else 1.0)
        return s / self.gain(t)

    def growth(self, t: float, along: Array, size: Array) -> Array:
        """r', from the time, <theta, A> and |A|."""
        if self.stream == "unit":
            return np.zeros_like(along)
        return self.gain(t) * (along / size if self.branch == "unit" else along)


@dataclass(frozen=True)
class Custom:
    """A user's own row: s(t, r, along, size) and r'(t, r, along, size), both elementwise on numpy arrays."""

    s: Callable[[float, Array, Array, Array], Array]
    dr: Callable[[float, Array, Array, Array], Array]
    values: Literal["direction", "raw"] = "direction"
    logits: float = 0.0
    heat: GainSchedule | None = None


def inverse_temperature(stage: Stage | Custom, t: float, beta: float) -> float:
    """beta as this stage sees it at time t."""
    grown = beta * (t + 1.0) ** stage.logits if stage.logits else beta
    return grown if stage.heat is None else grown * stage.heat(t)


@dataclass(frozen=True)
class Field:
    """A scheme of the dynamics: a stage, or several that follow each other at exact times.

    `stages` holds (start, stage), the first start being 0. `source` says where s and r' come from.
    """

    name: str
    title: str
    stages: tuple[tuple[float, Stage | Custom], ...]
    source: str = "your own"
    options: dict[str, Any] = field(default_factory=dict, compare=False)

    def stage(self, t: float) -> Stage | Custom:
        """The stage in force at time t (at a switch: the one that begins there)."""
        return next(stage for start, stage in reversed(self.stages) if t >= start)

    @property
    def switches(self) -> tuple[float, ...]:
        return tuple(start for start, _ in self.stages[1:])

    @property
    def last(self) -> Stage | Custom:
        return self.stages[-1][1]


PAPER = "arXiv 2510.22026, Table 1"
OWN = "derived here from the scheme's layer, by the rule of arXiv 2510.22026"

_POST, _PRE = Stage("unit"), Stage("free")
FIELDS: dict[str, Field] = {
    row.name: row
    for row in (
        Field("post_norm", "Post-LN", ((0.0, _POST),), PAPER),
        Field("pre_norm", "Pre-LN", ((0.0, _PRE),), PAPER),
        Field("mix_norm", "Mix-LN", ((0.0, _POST), (2.5, _PRE)), PAPER),
        Field("peri_norm", "Peri-LN", ((0.0, Stage("free", "unit")),), PAPER),
        Field("ngpt", "nGPT", ((0.0, Stage("unit", "unit")),), PAPER),
        Field("sqrt_scaling", "sqrt-scaling", ((0.0, Stage("unit", gain=Gain(1.0, -0.5))),), PAPER),
        Field("ln_scaling", "LayerNorm Scaling", ((0.0, Stage("free", gain=Gain(1.0, -0.5))),), OWN),
        Field("deep_norm", "DeepNorm", ((0.0, Stage("unit", gain=Gain(0.5))),), OWN),
        Field("admin", "Admin", ((0.0, Stage("unit", gain=Gain(0.5))),), OWN),
        Field("keel", "KEEL", ((0.0, Stage("unit", gain=Gain(1.0 / 16.0))),), OWN),
        Field("res_norm", "Res-Norm (OLMo 2)", ((0.0, Stage("free", "unit", values="raw")),), OWN),
    )
}
PAPER_SIX = ("post_norm", "pre_norm", "mix_norm", "peri_norm", "ngpt", "sqrt_scaling")

_ALIASES = {
    "post": "post_norm", "post_ln": "post_norm", "pre": "pre_norm", "pre_ln": "pre_norm", "mix": "mix_norm",
    "mix_ln": "mix_norm", "peri": "peri_norm", "peri_ln": "peri_norm", "double_norm": "peri_norm",
    "sandwich": "peri_norm", "peri_init_norm": "peri_norm", "sqrt": "sqrt_scaling", "lns": "ln_scaling",
    "layernorm_scaling": "ln_scaling", "deepnorm": "deep_norm", "olmo2": "res_norm", "olmo_2": "res_norm",
    "res": "res_norm",
}  # fmt: skip

Alpha = float | str | Callable[[float], float]


def names() -> list[str]:
    return list(FIELDS)


def field_name(name: str) -> str:
    """The canonical name of a covered scheme, or a sentence that says which are covered."""
    wanted = canonical(name)
    wanted = _ALIASES.get(wanted, wanted)
    if wanted in FIELDS:
        return wanted
    close = nearest(name, [*FIELDS, *_ALIASES])
    meant = f" (did you mean {_ALIASES.get(close, close)!r}?)" if close else ""
    raise UnsupportedError(
        f"the sphere dynamics do not cover {name!r}{meant}; they cover {', '.join(FIELDS)}; for another scheme pass a "
        "normlab.dynamics.Field of your own with its s and r'"
    )


def scheme_field(
    name: str | Field,
    *,
    tau: float | None = None,
    alpha: Alpha | None = None,
    depth: int | None = None,
    logits: Literal["plain", "scaled"] | None = None,
) -> Field:
    """A row of the table with its options set; a `Field` passes through.

    tau     mix_norm: when Post-LN becomes Pre-LN (2.5 unless told, a quarter of T = 10)
    alpha   ngpt: the step, a number, a function of time or a formula in t, "1/(1+t)" (1 unless told);
            deep_norm, admin: the weight of the stream, s = alpha (2 unless told or `depth` is given)
    depth   deep_norm: alpha = (2 depth)^(1/4); keel: s = 2 depth (8 layers unless told)
    logits  ln_scaling: "scaled" also divides the logits by t + 1, as q and k both read the scaled norm output;
            "plain" (unless told) keeps beta, so that only the scale on the values differs from Pre-LN
    """
    if isinstance(name, Field):
        return name
    row = FIELDS[field_name(name)]
    given = {"tau": tau, "alpha": alpha, "depth": depth, "logits": logits}
    allowed = _OPTIONS.get(row.name, {})
    for key, value in given.items():
        if value is not None and key not in allowed:
            takes = ", ".join(allowed) or "no option"
            raise ConfigError(f"{key}={value!r} was given to {row.name}, which takes {takes}")
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if isinstance(alpha, str):
        chosen["alpha"] = formula(alpha, option="alpha")
    for key, value in chosen.items():
        allowed[key](value)
    return replace(row, stages=_stages(row, chosen), options=chosen) if chosen else row


def heated(row: Field, factor: Callable[[float], float]) -> Field:
    """The same row with beta(t) = beta factor(t)."""
    stages = tuple((start, replace(stage, heat=GainSchedule(factor))) for start, stage in row.stages)
    return replace(row, stages=stages, options={**row.options, "beta": factor})


def _stages(row: Field, chosen: dict[str, Any]) -> tuple[tuple[float, Stage | Custom], ...]:
    alpha: Any = chosen.get("alpha")
    if row.name == "mix_norm":
        return ((0.0, _POST), (float(chosen["tau"]), _PRE))
    if row.name == "ln_scaling":
        power = -1.0 if chosen["logits"] == "scaled" else 0.0
        return ((0.0, Stage("free", gain=Gain(1.0, -0.5), logits=power)),)
    if row.name == "ngpt":
        return ((0.0, Stage("unit", "unit", gain=GainSchedule(alpha) if callable(alpha) else Gain(float(alpha)))),)
    if row.name == "keel":
        return ((0.0, Stage("unit", gain=Gain(1.0 / (2 * chosen["depth"])))),)
    if alpha is None:  # DeepNorm's rule for a model of one stack
        alpha = (2.0 * chosen["depth"]) ** 0.25
    return ((0.0, Stage("unit", gain=Gain(1.0 / float(alpha)))),)


def _positive(what: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if callable(value) and what == "alpha of ngpt":
            return
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{what} should be a positive number, but is {value!r}")

    return check


def _logits(value: Any) -> None:
    if value not in ("plain", "scaled"):
        raise ConfigError(f"logits of ln_scaling is 'plain' or 'scaled', but is {value!r}")


_OPTIONS: dict[str, dict[str, Callable[[Any], None]]] = {
    "mix_norm": {"tau": _positive("tau of mix_norm")},
    "ngpt": {"alpha": _positive("alpha of ngpt")},
    "deep_norm": {"alpha": _positive("alpha of deep_norm"), "depth": _positive("depth of deep_norm")},
    "admin": {"alpha": _positive("alpha (omega) of admin")},
    "keel": {"depth": _positive("depth of keel")},
    "ln_scaling": {"logits": _logits},
}
