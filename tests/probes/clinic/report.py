"""What the clinic prints: sensitivity per fault, specificity per healthy model, confusion, and every miss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .protocol import SUBJECTS, Accusation, Outcome
from .runner import Checkup

HARMLESS = 0.02  # nats: a change of the loss below this is not seen by anybody who looks at the loss
TITLES = {"former": "formerly set aside"}  # of the halves that are not called by their name
GROWN = 300  # steps from which a healthy model should be judged


@dataclass(frozen=True)
class Tally:
    cases: int
    found: int
    strict: int
    refused: int

    @property
    def share(self) -> float:
        return self.found / self.cases if self.cases else float("nan")


@dataclass(frozen=True)
class Clinic:
    """One run of the clinic."""

    halves: dict[str, tuple[Outcome, ...]]
    healthy: tuple[Checkup, ...]
    own: tuple[Checkup, ...] = ()  # our schemes

    def to_dict(self) -> dict[str, object]:
        tallies = {half: asdict(tally(outcomes)) for half, outcomes in self.halves.items()}
        return {"tally": tallies, "accused": accused(self.healthy), "own_accused": accused(self.own), **asdict(self)}


def title(half: str) -> str:
    return f"{TITLES.get(half, half)} half"


def tally(outcomes: Sequence[Outcome]) -> Tally:
    return Tally(
        len(outcomes),
        sum(item.found for item in outcomes),
        sum(item.strict for item in outcomes),
        sum(bool(item.refused) for item in outcomes),
    )


def accused(healthy: Sequence[Checkup]) -> int:
    return sum(bool(item.exam.accusations) for item in healthy)


def text(clinic: Clinic) -> str:
    parts = [_half(half, outcomes) for half, outcomes in clinic.halves.items() if outcomes]
    if clinic.healthy:
        parts.append(_healthy("healthy models", clinic.healthy))
    if clinic.own:
        parts.append(_healthy("our own schemes", clinic.own))
    everything = [item for outcomes in clinic.halves.values() for item in outcomes]
    if everything:
        parts.append(_confusion(everything))
    for half, outcomes in clinic.halves.items():
        if outcomes:
            parts.append(_misses(half, outcomes))
    return "\n\n".join([*parts, summary(clinic)])


def summary(clinic: Clinic) -> str:
    lines = []
    for half, outcomes in clinic.halves.items():
        if outcomes:
            count = tally(outcomes)
            faults = len({item.fault for item in outcomes})
            lines.append(
                f"{title(half)}: {count.found} of {count.cases} cases found ({count.share:.0%}; strict {count.strict}), "
                f"{faults} faults, {count.refused} refused or crashed"
            )
    for who, healthy in (("healthy models", clinic.healthy), ("our own schemes", clinic.own)):
        if healthy:
            warnings = sum(len(item.exam.accusations) for item in healthy)
            grown = [item for item in healthy if item.age >= GROWN]
            judged = sum(not item.exam.untrained and not item.exam.refused for item in grown)
            lines.append(
                f"{who}: {accused(healthy)} of {len(healthy)} accused, {warnings} warnings; "
                f"{judged} of {len(grown)} with {GROWN} steps or more were judged"
            )
    return "\n".join(lines)


def _half(half: str, outcomes: Sequence[Outcome]) -> str:
    lines = [f"Sensitivity, {title(half)}", f"  {'fault':40} {'subject':11} found strict  loss change  reported"]
    for name in dict.fromkeys(item.fault for item in outcomes):
        mine = [item for item in outcomes if item.fault == name]
        count = tally(mine)
        low, high = min(item.loss_change for item in mine), max(item.loss_change for item in mine)
        said = Counter(accusation.verdict for item in mine for accusation in item.news)
        reported = ", ".join(f"{verdict} {n}" for verdict, n in said.most_common()) or "-"
        lines.append(
            f"  {name:40} {mine[0].subject:11} {count.found:2}/{count.cases}  {count.strict:2}/{count.cases}  "
            f"{low:+5.2f} to {high:+5.2f}  {reported}"
        )
    faint = sorted(
        {f"{x.fault} ({x.abnormal or 'no reason given'})" for x in outcomes if abs(x.loss_change) < HARMLESS}
    )
    if faint:
        lines.append(
            f"  the loss changes by less than {HARMLESS} in at least one backbone; why these count: {'; '.join(faint)}"
        )
    return "\n".join(lines)


def _healthy(who: str, healthy: Sequence[Checkup]) -> str:
    lines = [f"Specificity: {who}", f"  {'model':26} {'loss':>5}  accused of"]
    for item in healthy:
        told = _told(item.exam.accusations) or "-"
        young = f" (said to be untrained: {_told(item.exam.untrained)})" if item.exam.untrained else ""
        lines.append(f"  {item.backbone:26} {item.loss:5.2f}  {item.exam.refused or told}{young}")
    return "\n".join(lines)


def _told(items: Sequence[Accusation]) -> str:
    return ", ".join(f"{item.verdict}{list(item.layers) if item.layers else ''}" for item in items)


def _confusion(outcomes: Sequence[Outcome]) -> str:
    """Rows: what was planted. Columns: what was said (each subject once per case), or nothing."""
    said = {item: {accusation.subject for accusation in item.news} or {"nothing"} for item in outcomes}
    others = sorted({subject for subjects in said.values() for subject in subjects} - {*SUBJECTS, "nothing"})
    columns = [*SUBJECTS, *others, "nothing"]
    lines = [
        "Confusion: planted subject (row), reported subjects (column)",
        " " * 14 + " ".join(f"{c[:9]:>9}" for c in columns),
    ]
    for row in SUBJECTS:
        mine = [item for item in outcomes if item.subject == row]
        if mine:
            counts = [sum(column in said[item] for item in mine) for column in columns]
            lines.append(f"  {row:11} " + " ".join(f"{n or '.':>9}" for n in counts))
    return "\n".join(lines)


def _misses(half: str, outcomes: Sequence[Outcome]) -> str:
    lines = [f"Missed, {title(half)}"]
    for item in outcomes:
        if not item.found:
            told = item.refused or _told(item.news) or "nothing"
            lines.append(
                f"  {item.fault} in {item.backbone}: {item.what}; loss {item.loss_change:+.2f}; reported: {told[:160]}"
            )
    return "\n".join(lines if len(lines) > 1 else [*lines, "  none"])
