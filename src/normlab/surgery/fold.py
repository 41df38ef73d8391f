"""`nl.fold(model)`: a swapped model back into the plain architecture, where that is exact; else a refusal.

What can be written into a plain model: a gain on what a branch adds goes into its last weights (or into the norm behind
it), a number behind a norm into the norm's gain. Everything else must still be at its neutral start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normlab.errors import UnsupportedError
from normlab.results import Result
from normlab.schemes import Scheme, SchemeConfig, label
from normlab.schemes.placement import Placement
from normlab.surgery.anatomy import Anatomy, SitePlace, anatomy
from normlab.surgery.calibrate import scale_norm
from normlab.surgery.classes import base_of, dress, is_swapped, stored_scheme, undress
from normlab.surgery.splice import Fixed, build, factor_of, splice, stores_gain_less_one, unsplice, way_of
from normlab.surgery.swap import ROUNDING, largest_difference, observe, probe_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Changed = list[tuple[Tensor, Tensor]]
_LAST = (
    "o_proj",
    "down_proj",
    "c_proj",
    "out_proj",
    "dense",
    "fc2",
    "wo",
    "o",
    "out_lin",
    "lin2",
    "w2",
    "dense_4h_to_h",
)


@dataclass(frozen=True)
class FoldReport(Result):
    """What was written back, and how far the plain model's answers are from the swapped one's."""

    scheme: str
    architecture: str
    folded: tuple[str, ...]
    max_abs_diff: float
    largest: float
    kind: str = "fold"

    @property
    def text(self) -> str:
        what = f"{', '.join(self.folded)} went into its weights" if self.folded else "nothing had to be written back"
        return (
            f"{self.scheme} is out: a plain {self.architecture} again; {what}. Outputs differ by at most "
            f"{self.max_abs_diff:.2g} (the largest is {self.largest:.3g})."
        )


def fold(model: PreTrainedModel, *, batches: object = None) -> FoldReport:
    """The plain architecture again, in place, for programs that know nothing of schemes."""
    if not is_swapped(model):
        raise UnsupportedError(f"{type(model).__name__} is not swapped: there is nothing to fold")
    config = stored_scheme(model.config)
    body = anatomy(model)
    scheme = model.scheme
    assert isinstance(scheme, Scheme)
    shown, mode = probe_batches(model, batches), model.training
    _must_be_exact(config, scheme, body)
    model.eval()
    before = observe(model, shown, None)
    changed: Changed = []
    try:
        folded = _write_back(scheme, body, changed)
        unsplice(body)
        undress(model)
        after = observe(model, shown, None)
        difference, largest = largest_difference(before, after), max(float(o.abs().max()) for o in before.outputs)
        if difference > ROUNDING * torch.finfo(next(model.parameters()).dtype).eps * largest:
            raise UnsupportedError(
                f"the plain {type(model).__name__} differs from the swapped model by {difference:.2g}, so {label(config)} "
                "was not folded; nothing was changed"
            )
    except BaseException:
        _undo(model, config, scheme, changed)
        raise
    finally:
        model.train(mode)
    return FoldReport(label(config), type(model).__name__, tuple(folded), difference, largest)


def _undo(model: PreTrainedModel, config: SchemeConfig, scheme: Scheme, changed: Changed) -> None:
    with torch.no_grad():
        for parameter, value in changed:
            parameter.copy_(value)
    if not is_swapped(model):
        body = anatomy(model)
        splice(body, scheme, way=way_of(config))
        dress(model, config)


def _must_be_exact(config: SchemeConfig, scheme: Scheme, body: Anatomy) -> None:
    """Raise, with the reason, where no plain model computes this function."""
    plain = base_of(type(body.model)).__name__
    if way_of(config) != "keep":
        fixed = any(isinstance(module, Fixed) for module in body.model.modules())
        if fixed or any(True for _ in scheme.parameters()):
            raise UnsupportedError(
                f"{label(config)} has its norms elsewhere than {plain}, and no weights of a plain model do what a norm does"
            )
        return
    moved = _moved(config, scheme, body)
    if moved:
        raise UnsupportedError(
            f"{label(config)} has learnt ({', '.join(moved)}), and the plain {plain} has nothing that could hold it: its "
            "residual stream is one sum with weights 1"
        )


def _moved(config: SchemeConfig, scheme: Scheme, body: Anatomy) -> list[str]:
    """Parameters that are not at their neutral start and cannot be written back."""
    neutral = config.neutral()
    fresh = build(config if neutral is None else neutral, body).state_dict()
    kept = {"b.values"} if isinstance(scheme, Placement) and _outputs(body) else set()
    found = []
    for name, value in scheme.named_parameters():
        start = fresh.get(name)
        if name not in kept and (start is None or not torch.equal(value.detach().cpu(), start.to(value.dtype))):
            found.append(name)
    return found


def _outputs(body: Anatomy) -> bool:
    """Can a gain on what a branch adds go into weights? Not where a norm stands behind the addition."""
    return not any(place.out for place in body.places)


@torch.no_grad()
def _write_back(scheme: Scheme, body: Anatomy, changed: Changed) -> list[str]:
    folded: list[str] = []
    for place in body.places:
        factor = factor_of(scheme, place.site.index)
        for name in place.pre if factor != 1.0 else ():
            changed += scale_norm(place.part(name), factor)
            folded.append(name)
        if isinstance(scheme, Placement) and scheme.b.values is not None and scheme.b.shape is not None:
            gain = scheme.b.values[scheme.b.slot[place.site.index]].detach()
            for name in place.res or place.cores:
                _scale_output(place, name, gain, changed)
                folded.append(name)
    return list(dict.fromkeys(name.rpartition(".")[2] for name in folded))


def _scale_output(place: SitePlace, name: str, gain: Tensor, changed: Changed) -> None:
    """Multiply what this module returns by a gain, a number or one for each channel."""
    module = place.part(name)
    if name in place.res:
        weight, shift = module.weight, getattr(module, "bias", None)
        assert isinstance(weight, Tensor)
        changed.append((weight, weight.clone()))
        weight.copy_(((1 + weight) * gain - 1) if stores_gain_less_one(module) else weight * gain)
        if isinstance(shift, Tensor):
            changed.append((shift, shift.clone()))
            shift.mul_(gain)
        return
    targets = list(_last_weights(place, name))
    if not targets:
        raise UnsupportedError(f"{type(module).__name__} has no output projection that a gain could be folded into")
    for parameter, axis in targets:
        shape = [1] * parameter.dim()
        shape[axis] = -1
        changed.append((parameter, parameter.clone()))
        parameter.mul_(gain if gain.dim() == 0 else gain.view(shape))


def _last_weights(place: SitePlace, name: str) -> Iterator[tuple[Tensor, int]]:
    """The parameters that make a branch's output, and which axis is the stream's."""
    branch = next(branch for branch in place.branches if name in (branch.core, branch.added))
    roots = [place.part(name), *([place.part(branch.added)] if branch.added != name else [])]
    inside = [(path.rpartition(".")[2], module) for root in roots for path, module in root.named_modules()]
    if isinstance(roots[-1], nn.Linear):  # OPT: the FFN is not a module of its own
        inside.append((_LAST[0], roots[-1]))
    seen: set[int] = set()
    found = [module for leaf, module in inside if leaf in _LAST and hasattr(module, "weight")]
    for module in found if len(found) == 1 else [m for m in found if _ends(m, found)]:
        transposed = type(module).__name__ == "Conv1D"
        for parameter, axis in ((module.weight, 1 if transposed else 0), (module.bias, 0)):
            if isinstance(parameter, Tensor) and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter, axis
    for root in roots:  # experts in one tensor: [experts, out, in]
        for path, parameter in root.named_parameters():
            if path.rpartition(".")[2] == "down_proj" and parameter.dim() == 3 and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter, 1


def _ends(module: nn.Module, found: list[nn.Module]) -> bool:
    """Of several candidates (the down projections of shared experts too) those of the last one's name and shape."""
    weight, last = module.weight, found[-1].weight
    return isinstance(weight, Tensor) and isinstance(last, Tensor) and weight.shape[0] == last.shape[0]
