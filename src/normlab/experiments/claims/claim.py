"""What a claim is: one row of the ledger."""

from __future__ import annotations

import re
from dataclasses import dataclass

from normlab.errors import ConfigError
from normlab.experiments.claims.criteria import Criterion, NotMeasured

ID = re.compile(r"\d{3}-\d{2}[a-z]?")


@dataclass(frozen=True)
class Correction:
    """What was printed of a claim that its experiment does not carry, and what stands now.

    printed    the verdict and the number until `date`
    statement  the sentence until then, where it was another one
    why        what was wrong
    stands     what the stored numbers do say
    decides    the experiment that would decide the claim
    carried    the evidence carries the sentence as it reads now, so that its verdict is printed; else there is none
    """

    printed: str
    why: str
    stands: str
    decides: str
    statement: str = ""
    carried: bool = False
    date: str = "2026-11-19"

    @property
    def lines(self) -> dict[str, str]:
        """What a reader is shown, by its heading."""
        sentence = f' The sentence was: "{self.statement}"' if self.statement else ""
        return {
            f"Printed until {self.date}": f"{self.printed}.{sentence}",
            "Why that was wrong": self.why,
            "What stands now": self.stands,
            "What would decide it": self.decides,
        }


@dataclass(frozen=True)
class Claim:
    """A sentence of the field in our words, and how it is decided.

    source     where the claim is made; "circulating summary" where no paper says it so
    criterion  fixed before the run
    evidence   name of the evidence file; several claims may rest on one (the id unless told)
    look       another command of normlab's that shows the same thing, if any
    note       what a reader should know: a limit of the criterion, how the claim is misread
    limit      why its number may not be used to choose: the best rate is the last one tried, say
    corrected  what was taken back, and why
    """

    id: str
    statement: str
    source: str
    criterion: Criterion
    evidence: str = ""
    look: str = ""
    note: str = ""
    limit: str = ""
    corrected: Correction | None = None

    def __post_init__(self) -> None:
        if not ID.fullmatch(self.id):
            raise ConfigError(f"a claim's id is like 002-02, but is {self.id!r}")
        if not self.evidence:
            object.__setattr__(self, "evidence", self.id)

    @property
    def seed(self) -> str:
        """The family that it belongs to: one page, and one correction for many tests."""
        return self.id[:3]

    @property
    def command(self) -> str:
        return f"normlab claims run {self.id}"

    @property
    def withdrawn(self) -> bool:
        """Its experiment does not carry its sentence, so that the number has no verdict."""
        return self.corrected is not None and not self.corrected.carried

    @property
    def measurable(self) -> bool:
        return not isinstance(self.criterion, NotMeasured)
