"""From numbers to sentences: what is wrong, how much, what is normal, why it matters, what to try.

A rule (`rules`) looks at a `ModelEvidence` and returns a `Verdict` or None. Limits are in one table; what is normal comes
from `data/gallery.json`, which `tools/diagnose_gallery.py` measures on healthy models of several ages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from normlab.probes.judge.advice import TEXTS, advise
from normlab.probes.measure.readings import Readings
from normlab.probes.measure.skips import SkipReport
from normlab.probes.measure.summary import Summary
from normlab.probes.measure.table import Real, Rows, Sparse
from normlab.probes.measure.weights import ALIKE, Twin

SEVERITIES = ("bad", "warn", "note")


@dataclass(frozen=True)
class Limits:
    """What the rules judge by, in one place."""

    dilution: float = 0.08  # late contribution below this, and below half of the early one
    gradient_spread: float = 15.0  # between layers, the first left out
    gradient_bad: float = 300.0
    trend: float = 0.6  # rank correlation with depth from which gradients are said to grow or vanish
    collapse: float = 0.95  # mean cosine between tokens, without the three largest coordinates
    uniform: float = 0.95  # normalised entropy
    sink: float = 0.3  # mass on one key, in a quarter of the layers
    explosion: float = math.log(1.4)  # factor per layer
    exploded: float = 16.0  # and from the first layer to the last
    growing: float = 1.15  # a step of the stream that counts as growth
    jump: float = 6.0  # growth of the stream in one layer, and as many times the usual step
    dead: float = 1e-3  # ||f|| / ||h||, and a fiftieth of the other layers'
    oversized: float = 5.0  # times the neighbours
    undersized: float = 5.0
    duplicate: float = ALIKE
    wasted: float = 0.01  # of what the model has learnt (chance - loss)
    harm: float = 0.03  # nats
    homogeneous: float = 0.95  # mean cosine between the streams of one token, after the first layers
    gain: float = (
        30.0  # composite of the mixings (doubly stochastic: 1; healthy hyper-connections 12; mHC reports 3000)
    )
    # -- several streams --
    keeps: float = 0.7  # second singular value of one mixing
    mixing_error: float = 0.1  # of rows and columns from 1
    write_gate: float = 0.05  # mean of a branch's write gates
    stuck: float = 0.9  # share of the gates of a branch at their bounds
    smallest_stream: float = 0.05  # size of a stream beside the mean
    head_share: float = 0.97  # largest weight of the head's read
    # -- the loss --
    worse: float = 1.15  # of chance
    chance: float = 0.95
    frequencies: float = 0.93  # of what single-token frequencies score
    grown: float = 0.75  # of the same: below, attention is expected to have learnt something
    calibrated: float = 0.2  # |loss - entropy| of the loss
    gap: float = 0.35  # nats
    context: float = 0.1  # nats
    short: float = 0.01  # nats that a few tokens of context do better than all of it
    leak: float = 1e-3
    # -- weights --
    gain_scale: float = 3.0  # of a norm's median gain, relative to the layers around
    gain_peak: float = 5.0
    reset: float = 20.0
    trained: float = 0.02  # spread of gains that were trained
    share: float = 0.1  # of rows, columns or entries that are off or flipped
    missing: float = 0.03  # of rows or columns that are exactly zero in several matrices of a layer
    matrix_scale: float = 2.5
    rank: float = 1.6
    row: float = 10.0  # largest row of a matrix over its median row, relative to the layers around
    expert: float = 3.0
    pull: float = 0.4  # nats per unit of log scale
    pull_ends: float = 1.0
    bias_scale: float = 8.0
    bias: float = 0.05
    unused: float = 0.02  # of an even share
    eps: float = 1e-3
    eps_share: float = 0.05  # of what a norm divides by
    distinct: float = 3.0  # times fewer different values than the layers around
    as_fine: float = 0.85  # of the different values of the layers around: below, a matrix is rounded more coarsely
    edge: float = 1.5  # largest singular value beside noise, relative to the layers around
    tails: float = 1.7  # kurtosis, relative to the layers around
    no_tails: float = 3.1  # and at most this; Gaussian noise has 3
    response: float = 3.0
    pull_outlier: float = 2.5
    direction: float = 0.55  # of the squared entries of a matrix, the median layer
    values: float = 4.0
    levels: float = 16.0  # values of a row, where other layers or experts have many more
    norm_misfit: float = 0.05  # of what a norm returns
    token_mixing: float = 0.01  # of what an FFN returns
    equal_rows: float = 0.005
    # -- tried --
    trial: float = 0.01  # nats that a change must gain beyond its error
    repair: float = 0.03  # nats that a few steps of training gain; healthy small models at most 0.007
    regained: float = 0.25  # the same in a model that looks young: healthy ones of 30 steps and more gain at most 0.12
    left: float = 0.33  # of what an undone mistake gains: what training may still gain, and no more than `repair` or
    left_large: float = 0.125  # this part: of a text in one piece training gains up to 0.11 nats in healthy models too
    repair_masked: float = 0.06  # the same where a few hidden tokens count; healthy ones lose
    coherent: float = 1000.0  # targets from which on the gradient is more than noise; healthy ones have 1,200 and more
    suspicious: float = 5000.0  # targets: below, single layers of large models are tried as well
    coherent_masked: float = 330.0  # the same where a few hidden tokens count
    coherent_from: float = 0.64  # of the loss of single-token frequencies: below, a model is grown
    coherent_fall: float = 0.9  # share of the limit that is gone at the loss of frequencies
    coherent_fall_masked: float = 0.6
    steady: float = 2.0
    repeat: float = 1e-4
    twin: float = 0.995  # cosine between what two heads add
    untouched: float = 0.8  # share of matrices that look as they were drawn
    # -- attention --
    entropy: float = 3.0
    flat: float = 8.0
    head_low: float = 30.0
    head_high: float = 20.0
    # -- the ends --
    embedding: float = 100.0
    embedding_high: float = 12.0
    small_rows: float = 0.04
    common: float = 0.9
    row_peak: float = 8.0
    embedding_rank: float = 0.2
    rotary: float = 0.05
    final_low: float = 0.2
    final_high: float = 6.0
    final_spread: float = 0.7
    final_small: float = 6.0


LIMITS = Limits()


@dataclass(frozen=True)
class Verdict(Sparse):
    """One finding. `value` is the number that was judged, `limit` what it was judged by."""

    id: str
    severity: str
    title: str
    value: Real
    limit: Real
    layers: tuple[int, ...]
    normal: str
    why: str
    advice: str
    subject: str | None = None  # weights, attention, branches, ...; files of schema 1 do not say it

    @property
    def name(self) -> str:
        return self.id.replace("_", " ")

    @property
    def place(self) -> str:
        return listed(self.layers) if self.layers else f"the {(self.subject or self.name).replace('_', ' ')}"


def verdict(
    id: str,
    severity: str,
    title: str,
    *,
    value: float,
    limit: float,
    layers: tuple[int, ...] = (),
    normal: str = "none",
    subject: str | None = None,
) -> Verdict:
    """A verdict with the words that belong to its id."""
    words = TEXTS[id]
    usual = words.normal or normal
    return Verdict(id, severity, title, value, limit, layers, usual, words.why, advise(id), subject or words.subject)


@dataclass(frozen=True)
class ModelEvidence:
    """What the rules may look at."""

    rows: Rows
    summary: Summary
    placement: str
    nonfinite_weights: tuple[str, ...] = ()
    duplicates: tuple[Twin, ...] = ()
    causal: SkipReport | None = None
    readings: Readings = field(default_factory=Readings)
    start: float = 0.0  # the median token's norm before the first layer
    norms: tuple[str, ...] = ()  # of each layer, where layers differ in them

    @property
    def kinds(self) -> tuple[frozenset[int], ...]:
        """Layers that may be compared: the same norms and mixer of tokens, and attention that reaches equally far."""
        windows = {row.layer: row.window for row in self.readings.masks}
        norms = dict(enumerate(self.norms))
        groups: dict[tuple[str | None, int | None, str | None], set[int]] = {}
        for place, row in enumerate(self.rows):
            groups.setdefault((row.mixer, windows.get(place), norms.get(place)), set()).add(place)
        return tuple(map(frozenset, groups.values()))

    def alike(self, layer: int) -> frozenset[int]:
        """The other layers of this one's kind."""
        return next((kind - {layer} for kind in self.kinds if layer in kind), frozenset())

    @property
    def reads_depth(self) -> bool:
        """Branches read what earlier ones added with weights of their own: what a branch adds need not be of one size."""
        return any(row.effective_sources is not None for row in self.rows)

    @property
    def one_stream(self) -> bool:
        """Every branch reads the same sum, and adds to it."""
        return not self.reads_depth and all(row.homogenisation is None for row in self.rows)

    @property
    def unsettled(self) -> bool:
        """Batches agree, more than in most trained models, on how to change the weights."""
        noise = self.readings.noise
        return noise is not None and noise.high < LIMITS.suspicious


@dataclass(frozen=True)
class NormalRange:
    """Healthy models of one age: of every number of the summary the least and the largest value."""

    models: int
    low: Summary
    high: Summary


@dataclass(frozen=True)
class NormalRanges:
    made: str
    stages: dict[str, NormalRange]


@cache
def gallery() -> NormalRanges:
    path = Path(__file__).parent / "data" / "gallery.json"
    return TypeAdapter(NormalRanges).validate_json(path.read_bytes())


def normal(number: Callable[[Summary], float], *, of: str = "") -> str:
    """`entropy in healthy small models: random 0.12 to 0.31, early ..., late ...`: never the model that is judged."""
    bounds = {label: (number(stage.low), number(stage.high)) for label, stage in gallery().stages.items()}
    parts = [f"{label} {_show(low)} to {_show(high)}" for label, (low, high) in bounds.items() if math.isfinite(low)]
    return f"{f'{of} in ' if of else ''}healthy small models: {', '.join(parts)}" if parts else "no reference"


def _show(value: float) -> str:
    return f"{value:.3g}"


def listed(layers: tuple[int, ...] | list[int]) -> str:
    """`layers 3 to 7 and 9`: runs are shortened."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    more = [f"{len(parts) - 6} more"] if len(parts) > 6 else []
    *most, last = [*parts[:6], *more]
    text = f"{', '.join(most)} and {last}" if most else last
    return f"layer{'s' if len(layers) != 1 else ''} {text}"
