"""Examine sick and healthy models, one after the other; every exam is cached, so that a stopped clinic goes on."""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import normlab
from normlab.files import write_json

from . import blind, fifth, former, open_faults, set_aside, unseen
from .anatomy import dissect
from .backbones import AGES, RUNS, SIZES, Backbone, Run, cache, digest, held_out_loss, load, run_of, windows
from .blind_faults.tools import Variant
from .exam import examine, examine_folder
from .own import Own
from .protocol import (
    Accusation,
    Dice,
    Exam,
    Fault,
    Outcome,
    Patient,
    Planted,
    is_found,
    is_found_strictly,
    news,
)

HALVES: dict[str, tuple[Fault, ...]] = {
    "open": open_faults.FAULTS,
    "former": former.FAULTS,  # set aside once, spent now, as the next two
    "set-aside": set_aside.FAULTS,
    "blind": blind.FAULTS,
    "unseen": unseen.FAULTS,
    "fifth": fifth.FAULTS,
}
UNSEEN: tuple[str, ...] = ("fifth",)  # halves that no rule was tuned on; a new one is a row above and its name here
KNOWN = tuple(half for half in HALVES if half not in UNSEEN)  # on which rules may be tuned
VARIANTS: dict[str, tuple[Variant, ...]] = {
    "blind": blind.VARIANTS,
    "unseen": unseen.VARIANTS,
    "fifth": fifth.VARIANTS,
}  # healthy models in other clothes, by half
MORE_RUNS: dict[str, tuple[Run, ...]] = {"blind": blind.RUNS}  # healthy models that came with a half
BACKBONES_PER_FAULT = 3
BACKBONES_PER_VARIANT = 2
ROOMS = ("probes", "observe", "model", "schemes")  # what a diagnosis depends on


@dataclass(frozen=True)
class Case:
    half: str
    fault: Fault
    backbone: Backbone

    @property
    def name(self) -> str:
        return f"{self.fault.name} in {self.backbone.name}"

    @property
    def seed(self) -> int:
        return zlib.crc32(f"{self.fault.name} {self.backbone.run.name}".encode())


@dataclass(frozen=True)
class Dressed:
    """A healthy model in other clothes."""

    half: str
    variant: Variant
    backbone: Backbone

    @property
    def name(self) -> str:
        return f"{self.variant.name} in {self.backbone.name}"


@dataclass(frozen=True)
class Sick:
    """A cached exam of a case."""

    exam: Exam
    planted: Planted
    loss: float


@dataclass(frozen=True)
class Checkup:
    """The exam of a healthy model."""

    backbone: str
    age: int
    loss: float
    exam: Exam


def cases(half: str, *, everywhere: bool = False) -> Iterator[Case]:
    """Each fault in three of the kinds that it applies to (or all), taken in turn; seeds alternate too.

    A fault of one kind only is tried in two models of that kind.
    """
    for fault in HALVES[half]:
        turn = zlib.crc32(fault.name.encode())
        kinds = fault.kinds[turn % len(fault.kinds) :] + fault.kinds[: turn % len(fault.kinds)]
        kinds = kinds * 2 if len(kinds) == 1 else kinds if everywhere else kinds[:BACKBONES_PER_FAULT]
        for place, kind in enumerate(kinds):
            yield Case(half, fault, Backbone(run_of(kind, seed=(turn + place) % 2)))


def dressed(halves: Iterable[str] = tuple(VARIANTS)) -> Iterator[Dressed]:
    """Each variant in two of the kinds that it applies to, or in two models of its only kind."""
    for half, variant in ((name, item) for name in halves for item in VARIANTS.get(name, ())):
        turn = zlib.crc32(variant.name.encode())
        kinds = variant.kinds[turn % len(variant.kinds) :] + variant.kinds[: turn % len(variant.kinds)]
        for place, kind in enumerate((kinds * 2)[:BACKBONES_PER_VARIANT]):
            yield Dressed(half, variant, Backbone(run_of(kind, seed=(turn + place) % 2)))


def healthy(runs: Iterable[Run] = RUNS) -> Iterator[Backbone]:
    for run in runs:
        for age in AGES:
            yield Backbone(run, age)


def admit(backbone: Backbone) -> Patient:
    model = load(backbone)
    return Patient(backbone, model, dissect(model, backbone.kind), windows(16, 7, held_out=True)[:, :-1].contiguous())


def check_up(backbone: Backbone) -> Checkup:
    """The exam of a healthy model, from the cache if diagnose has not changed."""
    path = _path("healthy", backbone.name, digest(backbone.run))
    if path.exists():
        values = json.loads(path.read_text())
        return Checkup(**{**values, "exam": _exam(values["exam"])})
    patient = admit(backbone)
    found = Checkup(backbone.name, backbone.age, held_out_loss(patient.model, patient.kind), examine(patient))
    write_json(path, asdict(found))
    return found


def check_up_own(own: Own) -> Checkup:
    """The exam of a trained model of ours."""
    path = _path("own", own.name, str(own.folder))
    if path.exists():
        values = json.loads(path.read_text())
        return Checkup(**{**values, "exam": _exam(values["exam"])})
    found = Checkup(own.name, own.steps, own.loss, examine_folder(own.folder))
    write_json(path, asdict(found))
    return found


def check_up_dressed(item: Dressed) -> Checkup:
    """What is said of a variant and not of the model it was made of."""
    path = _path("dressed", item.name, digest(item.backbone.run) + _source(item.half))
    if path.exists():
        values = json.loads(path.read_text())
        return Checkup(**{**values, "exam": _exam(values["exam"])})
    patient, loss = dress(item)
    found = examine(patient)
    told = news(found, check_up(item.backbone).exam)
    accused = tuple(one for one in found.accusations if one in told)
    result = Checkup(item.name, item.backbone.age, loss, replace(found, accusations=accused))
    write_json(path, asdict(result))
    return result


def dress(item: Dressed) -> tuple[Patient, float]:
    """(the variant, its loss)"""
    patient = admit(item.backbone)
    item.variant.change(patient, Dice(zlib.crc32(item.name.encode())))
    return patient, held_out_loss(patient.model, patient.kind)


def plant(case: Case) -> tuple[Patient, Planted, float]:
    """(the sick model, what was done to it, its loss)"""
    patient = admit(case.backbone)
    torch.manual_seed(case.seed)
    planted = case.fault.plant(patient, Dice(case.seed))
    return patient, planted, held_out_loss(patient.model, patient.kind)


def treat(case: Case) -> Sick:
    """Plant the fault, measure what it does to the loss, diagnose."""
    path = _path("sick", case.name, digest(case.backbone.run) + _source(case.half))
    if path.exists():
        values = json.loads(path.read_text())
        planted = Planted(values["planted"]["what"], tuple(values["planted"]["layers"]))
        return Sick(_exam(values["exam"]), planted, values["loss"] if values["loss"] is not None else float("nan"))
    patient, planted, loss = plant(case)
    found = Sick(examine(patient), planted, loss)
    write_json(path, {**asdict(found), "loss": loss if loss == loss and abs(loss) < 1e30 else None})
    return found


def outcome(case: Case) -> Outcome:
    sick, twin = treat(case), check_up(case.backbone)
    told = news(sick.exam, twin.exam)
    depth = SIZES[case.backbone.run.size].layers
    return Outcome(
        fault=case.fault.name,
        subject=case.fault.subject,
        backbone=case.backbone.name,
        what=sick.planted.what,
        layers=sick.planted.layers,
        loss_change=sick.loss - twin.loss,
        news=told,
        found=is_found(told, case.fault, sick.planted, depth),
        strict=is_found_strictly(told, case.fault, sick.planted),
        refused=sick.exam.refused,
        seconds=sick.exam.seconds,
        abnormal=case.fault.abnormal,
    )


class Stopwatch:
    """Lets a long clinic stop after so many seconds; the cache keeps what is done."""

    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return self.end is not None and time.monotonic() > self.end


def _exam(values: dict[str, Any]) -> Exam:
    def items(name: str) -> tuple[Accusation, ...]:
        return tuple(Accusation(**{**item, "layers": tuple(item["layers"])}) for item in values[name])

    return Exam(items("accusations"), items("untrained"), values["refused"], values["seconds"])


def _path(group: str, name: str, salt: str) -> Path:
    key = hashlib.sha256(f"{name} {salt} {_code()}".encode()).hexdigest()[:20]
    return cache() / "exams" / group / f"{key}.json"


def _source(half: str) -> str:
    """Of the files that define a half: open*.py and open*/, and so on."""
    here, stem = Path(__file__).parent, half.replace("-", "_")
    files = [*here.glob(f"{stem}*.py"), *here.glob(f"{stem}*/*.py")]
    return "".join(_file(str(path)) for path in sorted(files))


def _file(path: str | None) -> str:
    return hashlib.sha256(Path(str(path)).read_bytes()).hexdigest()


def _code() -> str:
    """Of everything that a diagnosis runs, and of the clinic's own protocol."""
    source = Path(normlab.__file__).parent
    files = [path for room in ROOMS for path in sorted((source / room).rglob("*")) if path.suffix in (".py", ".json")]
    here = [Path(__file__).parent / name for name in ("anatomy.py", "exam.py", "protocol.py")]
    return hashlib.sha256("".join(_file(str(path)) for path in [*files, *here]).encode()).hexdigest()
