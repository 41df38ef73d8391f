"""What a fault is, what a diagnosis said of it, and when that counts as found.

A case is one fault in one trained model. The clinic asks three things of a diagnosis:

- *found* (lenient): it accuses somebody, with an accepted subject, or points at a planted layer;
- *found, strict*: one accusation has an accepted subject *and*, where both name layers, a planted layer;
- *healthy twins are not accused*: the same model, at the same age, without the fault.

What the healthy twin is told as well is not news and does not count. Subjects are compared, not verdicts' names: names
change, and a right diagnosis may see a fault from another side (`Fault.accepted`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .anatomy import Anatomy
from .backbones import KINDS, Backbone

SUBJECTS = (
    "loss",
    "stream",
    "branches",
    "attention",
    "heads",
    "weights",
    "experts",
    "embeddings",
    "final_norm",
    "gradients",
    "causal",  # what the loss does when a layer is skipped: harmful and wasted layers
    "training",
)
CAUSAL = tuple(kind for kind in KINDS if kind != "encoder")
ROTARY = ("pre", "peri", "res", "moe", "encoder")


@dataclass
class Patient:
    """A loaded model, to be changed in place, and the windows [rows, tokens] on which it will be diagnosed."""

    backbone: Backbone
    model: nn.Module
    body: Anatomy
    windows: Tensor

    @property
    def kind(self) -> str:
        return self.backbone.kind

    @property
    def depth(self) -> int:
        return len(self.body.layers)


class Dice:
    """Where a fault sits, drawn once per fault and backbone, so that no layer is special."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def integer(self, low: int, high: int) -> int:
        """low <= n < high"""
        return int(torch.randint(low, high, (1,), generator=self.generator))

    def layer(self, patient: Patient, *, inner: bool = True) -> int:
        """Any layer; `inner`: neither the first nor the last, which differ from the others in healthy models too."""
        return self.integer(1, patient.depth - 1) if inner else self.integer(0, patient.depth)

    def choice(self, values: tuple[float, ...]) -> float:
        """One of several strengths: real accidents are of all sizes."""
        return values[self.integer(0, len(values))]

    def several(self, high: int, count: int) -> list[int]:
        return sorted(torch.randperm(high, generator=self.generator)[:count].tolist())

    def normal(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, dtype=torch.float32).to(like)


@dataclass(frozen=True)
class Planted:
    """What was done and where; no layers: the fault is not in a layer, or in all of them."""

    what: str
    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fault:
    """`plant(patient, dice)` breaks a healthy model. `abnormal` says why a fault counts that the loss hardly notices."""

    name: str
    subject: str
    plant: Callable[[Patient, Dice], Planted]
    accepted: tuple[str, ...] = ()  # subjects of a right diagnosis, besides `subject`
    kinds: tuple[str, ...] = KINDS
    abnormal: str = ""

    def __post_init__(self) -> None:
        for subject in (self.subject, *self.accepted):
            if subject not in SUBJECTS:
                raise ValueError(
                    f"fault {self.name!r}: unknown subject {subject!r}; the subjects are {', '.join(SUBJECTS)}"
                )

    def applies_to(self, backbone: Backbone) -> bool:
        return backbone.kind in self.kinds

    @property
    def subjects(self) -> frozenset[str]:
        return frozenset((self.subject, *self.accepted))


@dataclass(frozen=True)
class Accusation:
    """A fault or a warning of a diagnosis; notes are none."""

    verdict: str
    subject: str
    layers: tuple[int, ...]
    severity: str


@dataclass(frozen=True)
class Exam:
    """What one diagnosis said of one model."""

    accusations: tuple[Accusation, ...] = ()
    untrained: tuple[Accusation, ...] = ()  # "at chance", "hardly trained": no accusation of a young healthy model
    refused: str = ""  # the sentence of a refusal, or of a crash
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """One fault in one backbone."""

    fault: str
    subject: str
    backbone: str
    what: str
    layers: tuple[int, ...]
    loss_change: float
    news: tuple[Accusation, ...]
    found: bool
    strict: bool
    refused: str
    seconds: float
    abnormal: str  # why it counts where the loss hardly changes


def news(sick: Exam, healthy: Exam) -> tuple[Accusation, ...]:
    """What the healthy twin is not told: another verdict, or the same one of other layers.

    The twin is trained, so "at chance" or "hardly trained" is news too.
    """
    known = {(item.verdict, item.layers) for item in healthy.accusations + healthy.untrained}
    return tuple(item for item in sick.accusations + sick.untrained if (item.verdict, item.layers) not in known)


def points_at(item: Accusation, layers: tuple[int, ...], depth: int) -> bool:
    """It names a planted layer, and not most of the model: who names every layer points nowhere."""
    return bool(set(item.layers) & set(layers)) and len(item.layers) <= max(depth // 2, len(layers))


def is_found(items: tuple[Accusation, ...], fault: Fault, planted: Planted, depth: int) -> bool:
    return any(item.subject in fault.subjects or points_at(item, planted.layers, depth) for item in items)


def is_found_strictly(items: tuple[Accusation, ...], fault: Fault, planted: Planted) -> bool:
    return any(
        item.subject in fault.subjects
        and (not item.layers or not planted.layers or bool(set(item.layers) & set(planted.layers)))
        for item in items
    )
