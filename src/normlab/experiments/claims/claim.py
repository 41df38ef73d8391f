"""What a claim is: one row of the ledger."""

from __future__ import annotations

import re
from dataclasses import dataclass

from normlab.errors import ConfigError
from normlab.experiments.claims.criteria import Criterion, NotMeasured

ID = re.compile(r"\d{3}-\d{2}[a-z]?")


@dataclass(frozen=True)
class Claim:
    """A sentence of the field in our words, and how it is decided.

    source     where the claim is made; "circulating summary" where no paper says it so
    criterion  fixed before the run
    evidence   name of the evidence file; several claims may rest on one (the id unless told)
    look       another command of normlab's that shows the same thing, if any
    note       what a reader should know: a limit of the criterion, how the claim is misread
    """

    id: str
    statement: str
    source: str
    criterion: Criterion
    evidence: str = ""
    look: str = ""
    note: str = ""

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
    def measurable(self) -> bool:
        return not isinstance(self.criterion, NotMeasured)
