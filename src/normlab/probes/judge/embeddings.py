"""The two ends: embeddings and positions, the norm before the head."""

from __future__ import annotations

import math

from normlab.probes.judge.verdicts import LIMITS, ModelEvidence, Verdict, verdict
from normlab.probes.measure.summary import finite, median
from normlab.probes.measure.weights import EmbeddingReading

# Placements whose stream grows with depth, so that a norm before the head is needed.
UNBOUNDED = ("pre_norm", "peri_norm", "res_norm")


def embedding_scale(f: ModelEvidence) -> Verdict | None:
    """An embedding that drowns the branches, or drowns in the first of them."""
    sizes = finite([branch.norm for row in f.rows for branch in row.branches])
    if not sizes or not f.start or f.placement.startswith("post_norm"):
        return None
    times = f.start / max(median(sizes), 1e-30)
    if 1 / LIMITS.embedding < times < LIMITS.embedding_high:
        return None
    word = "drowns" if times > 1 else "drowns in"
    title = f"the embedding {word} what the branches add: {times:.3g} times their median size"
    return verdict("embedding_scale", "warn", title, value=times, limit=LIMITS.embedding)


def embedding_rows(f: ModelEvidence) -> Verdict | None:
    return _rows(f.readings.embedding, "the embeddings") or _rows(f.readings.head, "the rows of the head")


def _rows(read: EmbeddingReading | None, what: str) -> Verdict | None:
    if read is None:
        return None
    if read.small > LIMITS.small_rows:
        title = f"{100 * read.small:.2g} % of {what} in use are below a tenth of the median norm"
        return verdict("embedding_rows", "warn", title, value=100 * read.small, limit=100 * LIMITS.small_rows)
    equal, empty = read.equal or 0.0, read.empty or 0.0
    if equal > LIMITS.equal_rows:
        title = f"{100 * equal:.2g} % of {what} in use are the same as another one: these tokens cannot be told apart"
        return verdict("embedding_rows", "warn", title, value=100 * equal, limit=100 * LIMITS.equal_rows)
    if empty > LIMITS.share:
        title = f"{100 * empty:.0f} % of the coordinates of {what} in use are zero, or nearly"
        return verdict("embedding_rows", "warn", title, value=100 * empty, limit=100 * LIMITS.share)
    if read.common > LIMITS.common:
        title = f"the mean of {what} is {read.common:.3g} times their median norm: they are nearly one vector"
        return verdict("embedding_rows", "warn", title, value=read.common, limit=LIMITS.common)
    if read.peak > LIMITS.row_peak:
        title = f"one of {what} in use is {read.peak:.3g} times as long as the median one"
        return verdict("embedding_rows", "warn", title, value=read.peak, limit=LIMITS.row_peak)
    if read.rank < LIMITS.embedding_rank:
        title = f"{what} in use have an effective rank of {100 * read.rank:.2g} % of their width"
        return verdict("embedding_rows", "warn", title, value=100 * read.rank, limit=100 * LIMITS.embedding_rank)
    return None


def positions(f: ModelEvidence) -> Verdict | None:
    read = f.readings.embedding
    if read is not None and read.positions is not None and read.positions > LIMITS.share:
        title = f"{100 * read.positions:.3g} % of the first rows of the table of positions are zero, or equal another"
        return verdict("positions", "bad", title, value=100 * read.positions, limit=100 * LIMITS.share)
    if read is None or read.rotary is None or not read.rotary > LIMITS.rotary:
        return None
    times = math.exp(min(read.rotary, 500.0))
    title = f"a rotary frequency is off by a factor of {times:.3g}: they do not fall geometrically from 1"
    return verdict("positions", "bad", title, value=times, limit=math.exp(LIMITS.rotary))


def final_norm(f: ModelEvidence) -> Verdict | None:
    """The last gain sets how sharp predictions are; what is odd there shows in how sure the model is."""
    said = f.readings.output
    if said is not None and said.normed is False and f.placement.split(",")[0] in UNBOUNDED:
        title = f"the head reads what leaves layer {len(f.rows) - 1} as it is: no norm stands between"
        return verdict("final_norm", "warn", title, value=0.0, limit=1.0)
    last = [row for row in f.readings.gains if row.layer < 0]
    inside = [row.spread for row in f.readings.gains if row.layer >= 0]
    if not last or said is None:
        return None
    row = last[-1]
    gap = said.loss - said.entropy
    if (
        abs(gap) > max(LIMITS.gap, LIMITS.calibrated * said.loss)
        and not LIMITS.final_low < row.median < LIMITS.final_high
    ):
        title = (
            f"the gain of {row.name} is {row.median:.3g}: predictions are too {'sharp' if gap > 0 else 'flat'} "
            f"(the model expects a loss of {said.entropy:.2f} nats and gets {said.loss:.2f})"
        )
        return verdict("final_norm", "warn", title, value=row.median, limit=LIMITS.final_high)
    size = median([row.median for row in f.readings.gains if row.layer >= 0])
    if row.median < size / LIMITS.final_small:
        title = f"the gain of {row.name} is {row.median:.3g}, that of norms inside of the layers {size:.3g} (median)"
        return verdict("final_norm", "warn", title, value=row.median, limit=size / LIMITS.final_small)
    usual = median(inside)
    if row.spread > LIMITS.final_spread and row.spread > 3 * usual:
        title = (
            f"the gain of {row.name} varies by {100 * row.spread:.3g} % between coordinates, other gains by "
            f"{100 * usual:.3g} %"
        )
        return verdict("final_norm", "warn", title, value=100 * row.spread, limit=100 * LIMITS.final_spread)
    return None


RULES = (positions, embedding_rows, embedding_scale, final_norm)
