"""Run the dynamics: several schemes and seeds, in the cheapest exact form, with curves and hitting times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field as Value

from normlab.config import Config
from normlab.dynamics.fields import Custom, Field, scheme_field
from normlab.dynamics.flow import starts
from normlab.dynamics.flow.gram import GramSystem
from normlab.dynamics.flow.particles import ParticleSystem
from normlab.dynamics.flow.scalar import LEVELS, check_scalar, check_times
from normlab.dynamics.flow.solver import Rhs, Tolerance, integrate
from normlab.dynamics.flow.weights import Draw
from normlab.errors import ConfigError
from normlab.report.terminal import progress as watched


class Setting(Config):
    """One experiment with the dynamics; every scheme gets the same starts and the same weights, seed by seed."""

    what: ClassVar[str] = "dynamics setting"

    n: int = 64
    d: int = 64
    beta: float = 1.0
    time: Annotated[float, Value(gt=0)] = 10.0
    samples: Annotated[int, Value(ge=2, le=100_000)] = 201
    init: Literal["symmetric", "uniform", "cone", "text"] = "uniform"
    gamma0: float = 0.0
    angle: float = 0.1
    text: str | None = None
    weights: Literal["identity", "random", "fresh"] = "identity"
    heads: Annotated[int, Value(ge=1)] = 1
    ffn: bool = False
    causal: bool = False
    r0: float = 1.0
    seeds: Annotated[tuple[int, ...], Value(strict=False)] = (0,)  # a list is what YAML and JSON can hold
    form: Literal["auto", "gram", "particles"] = "auto"
    keep_tokens: bool = False
    relative: Annotated[float, Value(gt=0, lt=0.1)] | None = None
    absolute: Annotated[float, Value(gt=0, lt=0.1)] | None = None
    max_steps: Annotated[int, Value(ge=1)] = 20_000

    def tolerance(self) -> Tolerance:
        """Tight where the field is smooth. An FFN's ReLU has a kink at each unit, where small steps buy nothing."""
        relative = self.relative or (1e-5 if self.ffn else 1e-9)
        return Tolerance(relative, self.absolute or relative * 1e-3, self.max_steps)

    def chosen_form(self) -> str:
        """The Gram form where it is exact (identity weights, no FFN, no tokens asked for) and not the dearer one."""
        closed = self.weights == "identity" and not self.ffn and not self.keep_tokens
        if self.form == "gram" and not closed:
            raise ConfigError(
                "form='gram' needs Q = K = V = I without an FFN, and knows angles only: with other weights, with ffn "
                "or with keep_tokens use form='particles'"
            )
        if self.form != "auto":
            return self.form
        return "gram" if closed and self.n <= 2 * self.d else "particles"


@dataclass(frozen=True)
class Simulation:
    """Curves of shape (schemes, seeds, times); `hits` of shape (schemes, seeds, levels), nan where never reached.

    gap: 1 - mean pairwise cosine.  radius: mean r.  speed: root mean square |theta'|.  tokens: (..., n, d) or None.
    """

    fields: tuple[Field, ...]
    setting: Setting
    form: str
    t: np.ndarray
    gap: np.ndarray
    radius: np.ndarray
    speed: np.ndarray
    gap_rate: np.ndarray
    levels: tuple[float, ...]
    hits: np.ndarray
    tokens: np.ndarray | None = None
    steps: int = 0
    evaluations: int = 0
    names: tuple[str, ...] = field(default=())

    @property
    def cosine(self) -> np.ndarray:
        return 1.0 - self.gap

    @property
    def variance(self) -> np.ndarray:
        """Var = (1/n) sum |theta_k - mean|^2 = (n-1)/n (1 - mean cosine)."""
        return self.gap * (self.setting.n - 1) / self.setting.n


def simulate(
    schemes: str | Field | Sequence[str | Field],
    setting: Setting | None = None,
    *,
    levels: Sequence[float] = LEVELS,
    progress: bool = False,
    **changes: object,
) -> Simulation:
    """Integrate the schemes over all seeds.

    >>> run = simulate(["post", "peri"], n=64, d=512, beta=1.0, time=10.0, seeds=(0, 1, 2))
    >>> run.cosine.shape
    (2, 3, 201)
    """
    setting = (setting or Setting()).replace(**changes) if changes else (setting or Setting())
    fields = tuple(scheme_field(s) for s in ([schemes] if isinstance(schemes, (str, Field)) else schemes))
    if not fields:
        raise ConfigError("no scheme was given; name at least one")
    check_scalar(setting.n, setting.beta, setting.r0, setting.gamma0)
    if setting.d < 2:
        raise ConfigError(f"d = {setting.d}: directions need at least two dimensions")
    if not setting.seeds:
        raise ConfigError("no seed was given; name at least one")
    times = check_times(np.linspace(0.0, setting.time, setting.samples), fields)
    form = setting.chosen_form()
    draw = Draw(setting.weights, setting.d, setting.heads, setting.ffn)
    runner = _Runner(setting, form, draw, times, tuple(levels))
    members = [(i, j) for i in range(len(fields)) for j in range(len(setting.seeds))]
    out = _Collected.empty(len(fields), len(setting.seeds), len(times), len(levels))
    for chunk in _watched(_chunks(members, fields, setting, form), progress, len(members)):
        runner.run(chunk, fields, out)
    shape = (len(fields), len(setting.seeds))
    tokens = np.array([[out.tokens[i, j] for j in range(shape[1])] for i in range(shape[0])]) if out.tokens else None
    return Simulation(
        fields, setting, form, times, out.gap, out.radius, out.speed, out.rate, tuple(levels), out.hits,
        tokens, out.steps, out.evaluations, tuple(f.name for f in fields),
    )  # fmt: skip


@dataclass
class _Collected:
    gap: np.ndarray
    radius: np.ndarray
    speed: np.ndarray
    rate: np.ndarray
    hits: np.ndarray
    tokens: dict[tuple[int, int], np.ndarray]
    steps: int = 0
    evaluations: int = 0

    @classmethod
    def empty(cls, f: int, s: int, t: int, k: int) -> _Collected:
        gap, radius, speed, rate = (np.full((f, s, t), np.nan) for _ in range(4))
        return cls(gap, radius, speed, rate, np.full((f, s, k), np.nan), {})


@dataclass(frozen=True)
class _Runner:
    setting: Setting
    form: str
    draw: Draw
    times: np.ndarray
    levels: tuple[float, ...]

    def run(self, chunk: list[tuple[int, int]], fields: tuple[Field, ...], out: _Collected) -> None:
        s = self.setting
        rows, seeds = [fields[i] for i, _ in chunk], [s.seeds[j] for _, j in chunk]
        system: GramSystem | ParticleSystem
        if self.form == "gram":
            system = GramSystem(rows, s.n, s.beta, causal=s.causal)
        else:
            system = ParticleSystem(rows, seeds, s.n, s.beta, self.draw, causal=s.causal)
        theta = np.stack([start_tokens(s, seed, self.form) for seed in seeds])
        breaks = {switch for row in rows for switch in row.switches}
        if s.weights == "fresh":
            breaks |= set(range(1, int(np.ceil(s.time))))
        trace = integrate(
            system.rhs_from,
            system.pack(theta, np.full(theta.shape[:2], s.r0)),
            times=self.times,
            observe=_Observer(system, s.keep_tokens, sorted(breaks)),
            breaks=sorted(breaks),
            watch=(lambda y: 1.0 - system.gap(y), self.levels),
            settle=system.settle,
            tolerance=s.tolerance(),
        )
        for b, (i, j) in enumerate(chunk):
            for k, (gap, radius, speed, rate, _) in enumerate(trace.samples):
                out.gap[i, j, k], out.radius[i, j, k] = gap[b], radius[b]
                out.speed[i, j, k], out.rate[i, j, k] = speed[b], rate[b]
            out.hits[i, j] = trace.hits[b]
            if s.keep_tokens:
                out.tokens[i, j] = np.stack([sample[4][b] for sample in trace.samples])
        out.steps += trace.steps
        out.evaluations += trace.evaluations


def start_tokens(setting: Setting, seed: int, form: str = "particles") -> np.ndarray:
    """The directions (n, d) that a seed starts from."""
    s = setting
    if s.init == "symmetric":
        # Angles are all that the Gram form knows, so an equiangular start is possible there whatever d is.
        return starts.symmetric(s.n, max(s.d, s.n) if form == "gram" else s.d, seed, gamma=s.gamma0)
    if s.init == "cone":
        return starts.cone(s.n, s.d, seed, angle=s.angle)
    if s.init == "text":
        return starts.text(s.n, s.d, seed, source=s.text)
    return starts.uniform(s.n, s.d, seed)


class _Observer:
    """What is kept of a state: gap, mean radius, speed, rate of the mean cosine, and the directions where asked."""

    def __init__(self, system: GramSystem | ParticleSystem, keep: bool, breaks: Sequence[float]) -> None:
        self.system, self.keep, self.breaks = system, keep, list(breaks)
        self.segment = -1
        self.rhs: Rhs | None = None

    def __call__(self, t: float, y: np.ndarray) -> tuple[np.ndarray, ...]:
        if isinstance(self.system, GramSystem):
            return (*self.system.observe(t, y), np.zeros((len(self.system.fields), 0)))
        segment = int(np.searchsorted(self.breaks, t, side="right"))
        if segment != self.segment or self.rhs is None:  # fresh weights are drawn once a layer, not once a sample
            self.segment = segment
            self.rhs = self.system.rhs_from(self.breaks[segment - 1] if segment else 0.0)
        seen = self.system.observe(t, y, self.rhs(t, y))
        directions = starts.unit(self.system.unpack(y)[0]) if self.keep else np.zeros((len(seen[0]), 0))
        return (*seen, directions)


def _chunks(
    members: list[tuple[int, int]], fields: tuple[Field, ...], setting: Setting, form: str
) -> Iterator[list[tuple[int, int]]]:
    """Small trajectories share an integration (numpy's overhead is then paid once); large ones go one by one."""
    size = setting.n * (setting.n if form == "gram" else setting.d)
    width = max(1, 32_768 // size)
    batch: list[tuple[int, int]] = []
    for member in members:
        alone = any(isinstance(stage, Custom) for _, stage in fields[member[0]].stages)
        if alone:
            yield [member]
            continue
        batch.append(member)
        if len(batch) == width:
            yield batch
            batch = []
    if batch:
        yield batch


def _watched(chunks: Iterator[list[tuple[int, int]]], shown: bool, total: int) -> Iterator[list[tuple[int, int]]]:
    if not shown:
        yield from chunks
        return
    planned = list(chunks)
    yield from watched(planned, what=f"{total} trajectories", total=len(planned))
