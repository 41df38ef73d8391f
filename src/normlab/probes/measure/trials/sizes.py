"""Parameters of one name that are too large or too small in every layer, where the loss pulls at their size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from normlab.probes.measure.gradients import PullRow
from normlab.probes.measure.trials.changes import Trial, scaled, times, together
from normlab.probes.measure.weights.gains import layer_norms
from normlab.probes.trace.hooks import Layout

PULL = 0.02  # nats per unit of log scale, from which on a size is tried
SMALLER, LARGER = (0.8, 0.5, 0.125), (1.25, 2.0, 8.0)


def sizes(layout: Layout, pulls: Sequence[PullRow]) -> Iterator[Trial]:
    """Every name by itself, and all gains together. The sign of the pull says in which direction to try.

    A larger step is tried where the one before it gained.
    """
    totals: dict[str, float] = {}
    for row in pulls:
        if row.layer >= 0:
            totals[row.name] = totals.get(row.name, 0.0) + row.pull
    norms = [norm for _, _, norm in layer_norms(layout)]
    names = {f"{name}.weight" for _, name, _ in layer_norms(layout)}
    common = sum(value for name, value in totals.items() if name in names)
    milder = ""
    for factor in _factors(common) if norms else ():
        what = f"with all gains times {factor:g}"
        yield Trial(what, "weights", (), together(scaled(n, factor) for n in norms), milder)
        milder = what
    for name, value in totals.items():
        if name in names:
            continue
        own = [p for _, layer in layout.layers for n, p in layer.named_parameters() if n == name]
        kind, milder = "branches" if name.endswith("bias") else "weights", ""
        for factor in _factors(value):
            what = f"with {name} times {factor:g} in every layer"
            yield Trial(what, kind, (), times(own, factor), milder)
            milder = what


def _factors(pull: float) -> tuple[float, ...]:
    return () if not abs(pull) > PULL else SMALLER if pull > 0 else LARGER
