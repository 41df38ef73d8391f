"""The body of a model: which places are flagged, and by what. The first picture of a page and of the terminal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from normlab.probes.judge.verdicts import SEVERITIES, Verdict
from normlab.probes.show import words
from normlab.report.figures import Figure, every_so_many, marked, status

if TYPE_CHECKING:
    from normlab.probes.diagnosis import Diagnosis

# Verdicts that name no layer stand at an end of the body; the others of that kind concern every layer.
_AT_START = ("embeddings", "embedding", "positions")
_AT_END = ("final_norm", "loss", "training", "head", "output")
ALL = "all findings"


@dataclass(frozen=True)
class Body:
    """Places (the embedding, the layers, the output) and, for each subject, how each place fares."""

    places: tuple[str, ...]
    fares: dict[str, tuple[str, ...]]  # subject -> "fine", "note", "warn" or "bad" per place
    said: dict[str, tuple[str, ...]]  # what is said there

    @property
    def overall(self) -> tuple[str, ...]:
        return self.fares[ALL]


def halves(d: Diagnosis) -> tuple[Diagnosis, ...]:
    """Each stack of layers by itself, with its own name and verdicts: an encoder, then its decoder; most models have one."""
    if not d.more:
        return (d,)
    prefix = f"in the {d.stack}, "
    own = tuple(replace(v, title=v.title.removeprefix(prefix)) for v in d.verdicts if v.title.startswith(prefix))
    last = replace(d, verdicts=own, more=())
    return tuple(replace(half, name=f"{d.name}, {half.stack}") for half in (*d.more, last))


def body_of(d: Diagnosis) -> Body:
    depth = len(d.layers)
    places = ("embedding", *(str(i) for i in range(depth)), "output")
    subjects = list(dict.fromkeys(v.subject or v.id for v in d.verdicts))
    table: dict[str, list[list[Verdict]]] = {name: [[] for _ in places] for name in (ALL, *subjects)}
    for verdict in d.verdicts:
        for place in _places(verdict, depth):
            for name in (ALL, verdict.subject or verdict.id):
                table[name][place].append(verdict)
    fares = {_named(name): tuple(_worst(cell) for cell in row) for name, row in table.items()}
    said = {
        _named(name): tuple(_said(place, cell) for place, cell in zip(places, row, strict=True))
        for name, row in table.items()
    }
    return Body(places, fares, said)


def _named(subject: str) -> str:
    return subject if subject == ALL else words.subject(subject)


def _places(verdict: Verdict, depth: int) -> list[int]:
    if verdict.layers:
        return [layer + 1 for layer in verdict.layers if layer < depth]
    if (verdict.subject or "") in _AT_START:
        return [0]
    return [depth + 1] if (verdict.subject or "") in _AT_END else list(range(1, depth + 1))


def _worst(cell: list[Verdict]) -> str:
    return min((verdict.severity for verdict in cell), key=SEVERITIES.index, default="fine")


def _said(place: str, cell: list[Verdict]) -> str:
    where = f"layer {place}" if place.isdigit() else place
    return f"{where}: " + ("; ".join(words.verdict_name(verdict) for verdict in cell) or "nothing to say")


def flagged(d: Diagnosis) -> dict[int, str]:
    """Layers with a warning or a fault, and which of the two; notes flag nothing."""
    found: dict[int, str] = {}
    for verdict in d.verdicts:
        for layer in verdict.layers:
            if verdict.severity != "note" and found.get(layer) != "bad":
                found[layer] = verdict.severity
    return found


def marks(d: Diagnosis) -> list[dict[str, object]]:
    """Flagged layers, to lay behind any picture over depth."""
    return marked(flagged(d))


def picture(d: Diagnosis) -> tuple[Figure, int]:
    """(figure, height): a strip for everything, and one for each subject of which something is said."""
    body = body_of(d)
    depth = len(d.layers)
    away = max(2.0, depth / 16)  # of the ends, whose names take room
    inner = {i + 1: str(i) for i in every_so_many(depth) if away <= i + 1 <= depth + 1 - away}
    drawn = status(body.fares, {0: "in", **inner, depth + 1: "out"}, said=body.said, x="layer")
    return drawn, 120 + 34 * len(body.fares)
