"""Before and after: what changed between two checkpoints of one model, in its weights, its verdicts and its loss."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import InputError
from normlab.files import write_json
from normlab.model import Transformer
from normlab.probes.clock import Progress
from normlab.probes.diagnose import diagnose_prepared, in_eval_mode
from normlab.probes.diagnosis import Diagnosis
from normlab.probes.inputs import batches as parts
from normlab.probes.inputs.losses import pick, token_ids
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.inputs.sources import Material, Prepared, prepare
from normlab.probes.judge.verdicts import Verdict
from normlab.probes.measure.table import Number, Real, Sparse, plain
from normlab.probes.trace.hooks import slow_path
from normlab.probes.trace.wrappers import unwrapped
from normlab.stats import standard_error, t_reach

SAME = 1e-9  # relative: below it nothing was trained, only stored again
TIMES = 3.0  # a layer stands out if it moved this many times as far as the median layer


@dataclass(frozen=True)
class Drift(Sparse):
    """How far one parameter moved. `layer` is None outside the layers."""

    name: str
    layer: int | None
    matrix: str  # its name within the layer
    size: Real  # |before|
    moved: Real  # |after - before|
    drift: Real  # moved / size
    cosine: Real  # between before and after
    scale: Real  # |after| / |before|


@dataclass(frozen=True)
class LayerDrift:
    """All parameters of a layer together, as one long vector."""

    layer: int
    drift: Real
    most: str  # the matrix that moved farthest
    most_drift: Real


@dataclass(frozen=True)
class LossChange(Sparse):
    """The mean loss on the same tokens, and the standard error of the difference over windows."""

    name: str
    before: Real
    after: Real
    change: Real
    error: Number = None
    windows: int = 1

    @property
    def certain(self) -> bool:
        """Is zero outside the 95 % interval?"""
        return abs(self.change) > t_reach(self.windows) * self.error if self.error is not None else False


@dataclass(frozen=True)
class VerdictChange(Sparse):
    """A verdict that came, went, or now names other layers."""

    kind: str  # gained, lost, moved
    verdict: Verdict
    earlier: Verdict | None = None


@dataclass(frozen=True)
class Change:
    """What changed from `before` to `after`."""

    before: Diagnosis
    after: Diagnosis
    layers: tuple[LayerDrift, ...]
    weights: tuple[Drift, ...]
    verdicts: tuple[VerdictChange, ...] = ()
    loss: LossChange | None = None

    @property
    def headline(self) -> str:
        """One sentence: the loss, where the weights moved, which verdicts came and went."""
        from normlab.probes.show.change import headline

        return headline(self)

    def of(self, kind: str) -> list[VerdictChange]:
        return [each for each in self.verdicts if each.kind == kind]

    @property
    def usual(self) -> float:
        """How far the median layer moved."""
        return statistics.median(row.drift for row in self.layers) if self.layers else math.nan

    @property
    def outstanding(self) -> tuple[int, ...]:
        """Layers that moved much farther than the median one."""
        return tuple(row.layer for row in self.layers if row.drift > max(SAME, TIMES * self.usual))

    def to_dict(self) -> dict[str, object]:
        found: dict[str, object] = plain(self)
        return {"headline": self.headline, **found, "before": self.before.to_dict(), "after": self.after.to_dict()}

    def to_json(self, path: str | Path) -> Path:
        return write_json(path, self.to_dict())

    def to_html(self, path: str | Path) -> Path:
        from normlab.probes.show.change import build

        return build(self).write(path)

    def __str__(self) -> str:
        from normlab.probes.show.change import as_text

        return as_text(self)


def diagnose_change(
    before: nn.Module | str | Path,
    after: nn.Module | str | Path,
    batches: Any = None,
    *,
    material: Material | None = None,
    options: DiagnoseOptions | None = None,
    progress: Progress | None = None,
) -> Change:
    """Diagnose two checkpoints of one model on the same tokens, and say what changed.

    >>> print(nl.diagnose_change("step-1000", "step-2000"))
    """
    chosen, shown = options or DiagnoseOptions(), material or Material()
    first = _prepared(before, batches, shown, chosen)
    second = _prepared(after, batches, shown, chosen)
    return change_of(first, second, progress=progress)


def change_of(before: Prepared, after: Prepared, *, progress: Progress | None = None) -> Change:
    """The same for two models that are loaded."""
    reason = why_not(before.model, after.model)
    if reason is not None:
        raise InputError(f"{before.name} and {after.name} are not two checkpoints of one model: {reason}")
    # The same tokens for both: the first one's tokenizer cut them.
    second = Prepared(after.name, after.model, before.batches, before.options, after.notes, before.text, before.images)
    found = [diagnose_prepared(each, progress=progress) for each in (before, second)]
    if progress is not None:
        progress("comparing", 0, 0)
    weights = tuple(drifts(before.model, after.model))
    return Change(
        before=found[0],
        after=found[1],
        layers=tuple(by_layer(weights)),
        weights=weights,
        verdicts=tuple(verdict_changes(found[0].verdicts, found[1].verdicts)),
        loss=_loss_change(before, after.model) if all(each.loss for each in found) else None,
    )


def _prepared(model: nn.Module | str | Path, batches: Any, material: Material, options: DiagnoseOptions) -> Prepared:
    if isinstance(model, (str, Path)):
        made = prepare(str(model), material, options)
        return made if batches is None else Prepared(made.name, made.model, batches, made.options, made.notes)
    if batches is None:
        raise InputError("live models need batches: nl.diagnose_change(before, after, [token_ids])")
    return Prepared(type(model).__name__, unwrapped(model), parts.as_batches(batches, model), options, ())


# -- weights -----------------------------------------------------------------------------------------------------------
def why_not(before: nn.Module, after: nn.Module) -> str | None:
    """Why two models are not one at two times; None if they are."""
    first, second = (dict(unwrapped(each).named_parameters()) for each in (before, after))
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())
        where = "first" if odd[0] in first else "second"
        return f"{len(odd)} parameters are only in one of them ({odd[0]} in the {where})"
    other = [name for name in first if first[name].shape != second[name].shape]
    if other:
        sizes = " and ".join(str(tuple(each[other[0]].shape)) for each in (first, second))
        return f"{len(other)} parameters have other sizes ({other[0]}: {sizes})"
    return None


@torch.no_grad()
def drifts(before: nn.Module, after: nn.Module) -> Iterator[Drift]:
    """Every parameter, in the model's order. Where both are zero nothing moved."""
    first, second = (dict(unwrapped(each).named_parameters()) for each in (before, after))
    stacks, model = _stacks(first), unwrapped(before)
    for name, old in first.items():
        a, b = (each.detach().flatten().double() for each in (old, second[name]))
        layer, matrix = _own_place(name, model) if isinstance(model, Transformer) else _place(name, stacks)
        sizes = float(a.norm()), float(b.norm())
        moved = float((b - a).norm())
        yield Drift(
            name=name,
            layer=layer,
            matrix=matrix,
            size=sizes[0],
            moved=moved,
            drift=_ratio(moved, sizes[0]),
            cosine=float(a @ b) / (sizes[0] * sizes[1]) if sizes[0] and sizes[1] else math.nan,
            scale=_ratio(sizes[1], sizes[0]) if any(sizes) else 1.0,
        )


def _ratio(value: float, size: float) -> float:
    return value / size if size else (0.0 if value == 0 else math.inf)


_NUMBERED = re.compile(r"^(.*?)\.?(\d+)\.(.*)$")


def _stacks(parameters: Iterable[str]) -> dict[str, int]:
    """Prefix of each stack of layers -> how many layers stand before it: an encoder's, then its decoder's."""
    sizes: dict[str, int] = {}
    for name in parameters:
        if found := _NUMBERED.match(name):
            sizes[found[1]] = max(sizes.get(found[1], 0), int(found[2]) + 1)
    offsets, total = {}, 0
    for prefix, size in sizes.items():
        if size > 1:
            offsets[prefix] = total
            total += size
    return offsets


def _place(name: str, stacks: dict[str, int]) -> tuple[int | None, str]:
    found = _NUMBERED.match(name)
    if found is None or found[1] not in stacks:
        return None, name
    return stacks[found[1]] + int(found[2]), found[3].removesuffix(".weight")


_BRANCH = re.compile(r"^(branches|scheme\.(\w+))\.(\d+)\.(.*)$")


def _own_place(name: str, model: Transformer) -> tuple[int | None, str]:
    """Our own models number their branches, and the norms of their scheme by branch: two or so make a layer."""
    found, count = _BRANCH.match(name), len(model.branches)
    if found is None or int(found[3]) >= count:
        return None, name
    matrix = found[4].removesuffix("weight").removesuffix(".")
    inner = " ".join(part for part in (found[2] and f"{found[2]} norm", matrix) if part)
    each = count // model.config.depth
    part = "" if each == 1 or not found[2] else ("attention ", "FFN ")[int(found[3]) % each]
    return int(found[3]) // each, f"{part}{inner}"


def by_layer(weights: Sequence[Drift]) -> Iterator[LayerDrift]:
    """|after - before| / |before| of each layer as a whole, and the matrix of it that moved farthest."""
    for layer in sorted({each.layer for each in weights if each.layer is not None}):
        mine = [each for each in weights if each.layer == layer]
        moved, size = (math.hypot(*values) for values in zip(*((each.moved, each.size) for each in mine), strict=True))
        # A bias that was zero has moved infinitely far by its own measure: matrices are compared where they were something.
        most = max(mine, key=lambda each: (math.isfinite(each.drift), each.drift))
        yield LayerDrift(layer, _ratio(moved, size), most.matrix, most.drift)


# -- verdicts and loss -------------------------------------------------------------------------------------------------
def verdict_changes(before: Sequence[Verdict], after: Sequence[Verdict]) -> Iterator[VerdictChange]:
    """Gained, lost, and those that now name other layers or weigh otherwise."""
    old, new = ({verdict.id: verdict for verdict in each} for each in (before, after))
    for id, verdict in new.items():
        if id not in old:
            yield VerdictChange("gained", verdict)
        elif (old[id].layers, old[id].severity) != (verdict.layers, verdict.severity):
            yield VerdictChange("moved", verdict, old[id])
    for id, verdict in old.items():
        if id not in new:
            yield VerdictChange("lost", verdict)


@torch.no_grad()
def _loss_change(before: Prepared, after: nn.Module) -> LossChange | None:
    """Window by window, so that the difference has an error bar of its own."""
    options = before.options
    batches = parts.as_batches(before.batches, before.model)
    loss = pick(
        options.loss, before.model, batches[0], mask_id=options.mask_id, special_ids=options.special_ids,
        seed=options.seed,
    )  # fmt: skip
    if loss is None:
        return None
    windows = [window for batch in batches for window in _windows(batch, whole=loss.targets is None)]
    values = []
    for model in (before.model, after):
        with in_eval_mode(model), slow_path():
            values.append([float(loss(model, window)) for window in windows])
    changes = [b - a for a, b in zip(*values, strict=True)]
    error = standard_error(changes) if len(changes) > 1 else None
    means = [statistics.fmean(each) for each in values]
    return LossChange(loss.name, means[0], means[1], statistics.fmean(changes), error, len(changes))


def _windows(batch: object, *, whole: bool) -> list[object]:
    """The rows of a batch one by one, where the loss is a mean over tokens."""
    ids = token_ids(batch)
    if whole or ids is None or not isinstance(batch, (dict, Tensor)):
        return [batch]
    if isinstance(batch, Tensor):
        return list(batch.split(1))
    return [{key: v[i : i + 1] if isinstance(v, Tensor) else v for key, v in batch.items()} for i in range(len(ids))]
