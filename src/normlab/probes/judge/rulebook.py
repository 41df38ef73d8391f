"""What rules share: the list they join, and how a verdict gets its words."""

from __future__ import annotations

from collections.abc import Callable

from normlab.probes.judge.advice import TEXTS, advise
from normlab.probes.judge.verdicts import Evidence, Verdict

Rule = Callable[[Evidence], "Verdict | None"]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def verdict(
    id: str, severity: str, title: str, value: float, limit: float, layers: tuple[int, ...], normal: str
) -> Verdict:
    return Verdict(id, severity, title, value, limit, layers, normal, TEXTS[id].why, advise(id))
