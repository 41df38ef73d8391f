"""Matrices: their size, rank, spectrum, tails, values and fit, and copies of whole layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, listed, verdict
from normlab.probes.judge.weights.columns import ROUTERS, layers_of, odd_layers
from normlab.probes.measure.gradients import PullRow
from normlab.probes.measure.summary import median
from normlab.probes.measure.weights import MatrixRow


def matrix_outlier(f: ModelEvidence) -> Verdict | None:
    biases = [row for row in f.readings.matrices if row.expert is None and row.name.endswith("bias")]
    found = odd_layers(f, whole(f), lambda row: row.rms, least=LIMITS.matrix_scale)
    # Biases are small and differ; one that dwarfs all others is seen here.
    found += [
        (name, each)
        for name, each in odd_layers(f, biases, lambda row: row.rms, least=LIMITS.bias_scale, low=False)
        if each.value > LIMITS.bias and 0 < each.layer < len(f.rows) - 1
    ]
    if not found:
        return None
    name, worst = found[0]
    title = f"{name} of layer {worst.layer} has entries of {worst.value:.3g} (RMS), in its neighbours {worst.usual:.3g}"
    return verdict(
        "matrix_outlier", "warn", title, value=worst.value, limit=LIMITS.matrix_scale, layers=layers_of(found)
    )


def row_outlier(f: ModelEvidence) -> Verdict | None:
    """One unit of a matrix that outweighs the others, as in no layer around."""
    matrices = [row for row in f.readings.matrices if not row.name.endswith("bias")]
    found = odd_layers(f, matrices, lambda row: row.peak, least=LIMITS.row, low=False)
    if not found:
        return None
    name, worst = found[0]
    title = (
        f"one row or column of {name} in layer {worst.layer} is {worst.value:.3g} times the median one; in its neighbours "
        f"the largest is {worst.usual:.3g} times"
    )
    return verdict("row_outlier", "warn", title, value=worst.value, limit=LIMITS.row, layers=layers_of(found))


def zero_weights(f: ModelEvidence) -> Verdict | None:
    """Rows or columns of a matrix that are zero, or most entries while the same matrix of other layers has them."""
    found: list[tuple[MatrixRow, float]] = []
    few: list[tuple[MatrixRow, float]] = []
    for row in f.readings.matrices:
        others = [o for o in f.readings.matrices if o.name == row.name and o is not row]
        if all(each.narrow and each.zeros == 1 for each in (row, *others)):
            continue  # an adapter that has learnt nothing yet: the second factor of each starts at zero
        value = max(row.quiet, row.zeros if _as_fine(row, others) else 0.0)
        same = sorted(max(o.quiet, o.zeros) for o in others)
        usual = same[len(same) // 2] if same else 1.0
        whole = row.quiet > LIMITS.share and row.zeros >= 0.9 * row.quiet  # rows or columns that are exactly zero
        if value > LIMITS.share and (whole or value > 3 * max(usual, 0.01)):
            found.append((row, value))
        elif row.quiet > LIMITS.missing and row.zeros >= 0.9 * row.quiet and usual < 0.01:
            few.append((row, row.quiet))
    # A few rows or columns of one matrix may be dead; the same in several matrices of a layer were taken out.
    places = [row.layer for row, _ in few]
    found += [(row, value) for row, value in few if places.count(row.layer) > 2]
    if not found:
        return None
    row, value = max(found, key=lambda item: item[1])
    expert = "" if row.expert is None else f", expert {row.expert},"
    title = f"{row.name}{expert} of layer {row.layer}: {100 * value:.0f} % of its rows, columns or entries are zero"
    layers = tuple(sorted({item[0].layer for item in found}))
    subject = "experts" if row.expert is not None else "weights"
    return verdict(
        "zero_weights", "bad", title, value=100 * value, limit=100 * LIMITS.share, layers=layers, subject=subject
    )


def _as_fine(row: MatrixRow, others: list[MatrixRow]) -> bool:
    """Is it rounded like the others? Where it is coarser, zero is one of its few levels (formats mix such matrices)."""
    fine = [known.distinct / max(1 - known.zeros, 1e-9) for known in (row, *others) if known.distinct is not None]
    return row.distinct is None or len(fine) < 2 or fine[0] > LIMITS.as_fine * median(fine[1:])


def low_rank(f: ModelEvidence) -> Verdict | None:
    found = odd_layers(f, f.readings.matrices, lambda row: row.rank, least=LIMITS.rank, high=False)
    if not found:
        return None
    name, worst = found[0]
    title = (
        f"{name} of layer {worst.layer} has an effective rank of {100 * worst.value:.2g} % of its size, "
        f"in its neighbours {100 * worst.usual:.2g} %"
    )
    return verdict("low_rank", "warn", title, value=100 * worst.value, limit=LIMITS.rank, layers=layers_of(found))


def one_direction(f: ModelEvidence) -> Verdict | None:
    """One direction makes up half of a matrix in most layers: what a merged adapter of the wrong scale leaves."""
    tops: dict[str, list[MatrixRow]] = defaultdict(list)
    for row in whole(f):
        if row.top is not None and row.rms > 0 and not row.name.endswith(ROUTERS):
            tops[row.name].append(row)
    shares = {name: median([row.top or 0.0 for row in rows]) for name, rows in tops.items() if len(rows) > 2}
    found = {name: share for name, share in shares.items() if share > LIMITS.direction}
    if not found:
        return None
    name = max(found, key=lambda each: found[each])
    title = (
        f"one direction makes up {100 * found[name]:.0f} % of {name} in the median layer; of all matrices of this model "
        f"{100 * median(list(shares.values())):.0f} % (median)"
    )
    return verdict("one_direction", "warn", title, value=100 * found[name], limit=100 * LIMITS.direction)


def duplicated_layers(f: ModelEvidence) -> Verdict | None:
    if not f.duplicates:
        return None
    layers = tuple(sorted({i for twin in f.duplicates for i in (twin.layer, twin.next)}))
    value = max(twin.cosine for twin in f.duplicates)
    title = f"{listed(layers)} have the same weights (cosine {value:.3f})"
    return verdict("duplicated_layers", "warn", title, value=value, limit=LIMITS.duplicate, layers=layers)


def copied_matrices(f: ModelEvidence) -> Verdict | None:
    """A matrix that two layers hold, where the layers as a whole differ."""
    known = {(twin.layer, twin.next) for twin in f.duplicates}
    found = [twin for twin in (f.readings.twins or ()) if (twin.layer, twin.next) not in known]
    if not found:
        return None
    layers = tuple(sorted({layer for twin in found for layer in (twin.layer, twin.next)}))
    worst = max(found, key=lambda twin: twin.cosine)
    names = len({twin.name for twin in found})
    title = (
        f"{worst.name} of {listed((worst.layer, worst.next))} is the same matrix (cosine {worst.cosine:.3f}); "
        f"{names} matri{'ces' if names > 1 else 'x'} in {listed(layers)}"
    )
    return verdict("copied_matrices", "warn", title, value=worst.cosine, limit=LIMITS.duplicate, layers=layers)


def unsettled_weights(f: ModelEvidence) -> Verdict | None:
    """A parameter that the loss wants much larger or smaller: training ends where no scale is pulled at.

    Weight decay holds the ends back (head, embedding, first and last layer), so more is asked of them.
    """
    said = f.readings.output
    if said is None:  # a loss that we made up is not what the model was trained on
        return None
    if said.chance and said.loss > said.chance:  # everything is pulled at
        return None
    inner = range(1, len(f.rows) - 1)
    limits = {row: LIMITS.pull if row.layer in inner else LIMITS.pull_ends for row in f.readings.pulls}
    found = [row for row, limit in limits.items() if abs(row.pull) > limit]
    if not found:
        return None
    worst = max(found, key=lambda row: abs(row.pull) / limits[row])
    where = f"{worst.name} of layer {worst.layer}" if worst.layer >= 0 else worst.name
    word = "smaller" if worst.pull > 0 else "larger"
    value = abs(worst.pull)
    title = f"the loss wants {where} {word}: a tenth of its scale would gain {0.1 * value:.2g} nats (pull {value:.3g})"
    near = [row for row in found if abs(row.pull) > 0.5 * value]
    layers = tuple(sorted({row.layer for row in near if row.layer >= 0}))
    return verdict(
        "unsettled_weights", "warn", title, value=value, limit=limits[worst], layers=layers, subject=_part(worst)
    )


def _part(row: PullRow) -> str:
    """Which part of the model a parameter outside of the layers belongs to, by its name."""
    if row.layer >= 0:
        return "weights"
    return "embeddings" if "embed" in row.name else "final_norm" if "norm" in row.name.lower() else "weights"


def spectrum_outlier(f: ModelEvidence) -> Verdict | None:
    """Training lifts the largest singular value out of the noise; a layer that was started anew lost it."""
    found = odd_layers(f, whole(f), lambda row: row.edge, least=LIMITS.edge, high=False)
    if not found:
        return None
    name, worst = found[0]
    title = (
        f"the largest singular value of {name} in layer {worst.layer} is {worst.value:.3g} times that of noise, in its "
        f"neighbours {worst.usual:.3g} times"
    )
    # A layer that was started anew lost it in several matrices; one alone is seen in healthy models.
    places = [each.layer for _, each in found]
    sure = f.unsettled or max(map(places.count, places)) > 1
    return verdict(
        "spectrum_outlier",
        "warn" if sure else "note",
        title,
        value=worst.value,
        limit=LIMITS.edge,
        layers=layers_of(found),
    )


def tails_outlier(f: ModelEvidence) -> Verdict | None:
    """Entries of a narrower distribution: clipped or rounded. A few huge ones feed massive activations and are no fault.

    Trained matrices differ much in how heavy their tails are; one without tails is as it was drawn, or was cut.
    """
    found = odd_layers(f, whole(f), lambda row: row.tails, least=LIMITS.tails, high=False)
    found = [(name, each) for name, each in found if each.value < LIMITS.no_tails]
    if not found:
        return None
    name, worst = found[0]
    title = (
        f"the entries of {name} in layer {worst.layer} have a kurtosis of {worst.value:.3g}, in its neighbours "
        f"{worst.usual:.3g}"
    )
    layers = layers_of(found)
    return verdict("tails_outlier", "warn", title, value=worst.value, limit=LIMITS.tails, layers=layers)


def misfit(f: ModelEvidence) -> Verdict | None:
    """A matrix that does not fit what it reads: of another model, another layer, or in another basis.

    One that fits better than all around it belongs to massive activations in healthy models, and one that fits worse
    is harmless where batches see nothing to change.
    """
    found = odd_layers(f, f.readings.responses, lambda row: row.response, least=LIMITS.response, high=False)
    if not found:
        return None
    name, worst = found[0]
    title = (
        f"{name} of layer {worst.layer} passes on {worst.value:.3g} times what noise of its size would, in its neighbours "
        f"{worst.usual:.3g} times"
    )
    layers, severity = layers_of(found), "warn" if f.unsettled else "note"
    return verdict("misfit", severity, title, value=worst.value, limit=LIMITS.response, layers=layers)


def whole(f: ModelEvidence) -> list[MatrixRow]:
    """Matrices, with the experts of a layer as one: the median over them."""
    plain = [row for row in f.readings.matrices if row.expert is None and not row.name.endswith("bias")]
    groups: dict[tuple[int, str], list[MatrixRow]] = defaultdict(list)
    for row in f.readings.matrices:
        if row.expert is not None:
            groups[row.layer, row.name].append(row)

    def middle(rows: list[MatrixRow], value: Callable[[MatrixRow], float | None]) -> float:
        return median([known for row in rows if (known := value(row)) is not None])

    merged = [
        replace(
            rows[0],
            expert=None,
            name=f"{name} (the median expert)",
            rms=middle(rows, lambda row: row.rms),
            edge=middle(rows, lambda row: row.edge),
            tails=middle(rows, lambda row: row.tails),
            distinct=middle(rows, lambda row: row.distinct),
            values=middle(rows, lambda row: row.values),
            top=middle(rows, lambda row: row.top),
        )
        for (_, name), rows in groups.items()
    ]
    return [*plain, *merged]


RULES = (
    duplicated_layers,
    copied_matrices,
    zero_weights,
    low_rank,
    one_direction,
    matrix_outlier,
    row_outlier,
    tails_outlier,
    spectrum_outlier,
    misfit,
    unsettled_weights,
)
