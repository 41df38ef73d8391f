"""The ledger with its evidence and verdicts: read it, measure one claim again, write it.

The evidence is in docs/claims/evidence of the repository; an installed package carries a copy beside this file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import normlab
from normlab.errors import ConfigError, InputError, unknown
from normlab.experiments.claims.bench import Kind, affordable, carry_out, find_measure, kind_of
from normlab.experiments.claims.claim import Claim
from normlab.experiments.claims.criteria import Judgement, NotMeasured
from normlab.experiments.claims.decide import VERDICTS, Decision, Verdict, decide
from normlab.experiments.claims.evidence import Evidence, read_evidence
from normlab.experiments.claims.ledger import ledger, pages
from normlab.experiments.claims.nulls import NullCheck, differences, null_check
from normlab.results import Plain, Result, plain

HERE = Path(__file__).resolve().parent


def evidence_folder() -> Path:
    """Where the committed evidence is."""
    packed = HERE / "evidence"
    return packed if packed.is_dir() else HERE.parents[3] / "docs" / "claims" / "evidence"


def read_all(folder: Path | None = None) -> dict[str, Evidence]:
    """Every file of evidence, by its name."""
    where = folder or evidence_folder()
    if not where.is_dir():
        raise InputError(
            f"there is no evidence in {str(where)!r}; give the folder with the files of `normlab claims run`"
        )
    return {path.stem: read_evidence(path) for path in sorted(where.glob("*.json"))}


@dataclass(frozen=True)
class Entry:
    """A decision with what is told beside it."""

    decision: Decision
    nulls: tuple[NullCheck, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def claim(self) -> Claim:
        return self.decision.claim

    @property
    def kind(self) -> Kind | None:
        """Of its evidence."""
        return None if self.decision.evidence is None else kind_of(self.claim.evidence)

    @property
    def lines(self) -> list[str]:
        """All that a reader is told of it."""
        d, c = self.decision, self.claim
        known = f"{self.kind}, n = {len(d.evidence.seeds)}" if d.evidence else "none on file"
        parts = {
            "Source": f"{c.source}.",
            "Number": d.sentence,
            "Evidence": f"{known}.",
            "Limit": f"{c.limit}." if c.limit else "",
            **(c.corrected.lines if c.corrected else {}),
            "Criterion of the withdrawn verdict" if c.withdrawn else "Criterion": f"{c.criterion.text()}.",
            "What would change it": "" if c.withdrawn else d.would_change,
            "Note": c.note,
            "Measure it again": c.command,
        }
        return [f"{c.id}: {c.statement}", d.verdict.capitalize(), *(f"{k}: {v}" for k, v in parts.items() if v)]

    def to_plain(self) -> dict[str, object]:
        d, c = self.decision, self.claim
        lead, known = d.leading, d.evidence
        return {
            "id": c.id, "seed": c.seed, "statement": c.statement, "source": c.source, "criterion": c.criterion.text(),
            "command": c.command, "look": c.look, "note": c.note, "limit": c.limit, "kind": self.kind,
            "corrected": asdict(c.corrected) if c.corrected else None, "verdict": d.verdict, "sentence": d.sentence,
            "would_change": d.would_change, "reason": d.sentence if d.verdict == "not measured" else None,
            "budget": d.would_change if d.verdict == "undecided" else None, "estimate": lead.estimate if lead else None,
            "low": lead.low if lead else None, "high": lead.high if lead else None,
            "wanted": list(lead.wanted) if lead and not c.withdrawn else None, "p": d.adjusted,
            "seeds": len(known.seeds) if known else 0,
            "looks": known.looks if known else 0,
            "evidence": c.evidence if known else None, "commit": known.commit if known else None,
            "nulls": [{**_row(n), "sentence": n.sentence} for n in self.nulls], "warnings": list(self.warnings),
        }  # fmt: skip


def _row(check: NullCheck) -> Mapping[str, Plain]:
    found = plain(check)
    assert isinstance(found, dict)
    return found


@dataclass(frozen=True)
class Book(Result):
    """All claims with their verdicts."""

    schema: ClassVar[int] = 1
    entries: tuple[Entry, ...]
    kind: str = "claims"

    @cached_property
    def counts(self) -> dict[Verdict, int]:
        found = Counter(entry.decision.verdict for entry in self.entries)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def __getitem__(self, id: str) -> Entry:
        return next(entry for entry in self.entries if entry.claim.id == id)

    def of_seed(self, seed: str | None) -> Book:
        """The claims of one seed alone."""
        known = sorted({entry.claim.seed for entry in self.entries})
        if seed is not None and seed not in known:
            raise ConfigError(unknown("seed", seed, known))
        return self if seed is None else Book(tuple(e for e in self.entries if e.claim.seed == seed))

    @property
    def answer(self) -> str:
        words = {"no verdict": "without a verdict"}
        parts = ", ".join(f"{count} {words.get(verdict, verdict)}" for verdict, count in self.counts.items() if count)
        return f"{len(self.entries)} claims: {parts}."


def claims(*, evidence: Mapping[str, Evidence] | Path | None = None, nulls: bool = True) -> Book:
    """Every claim of the ledger, decided from the committed evidence (or from another folder's)."""
    known = evidence if isinstance(evidence, Mapping) else read_all(evidence)
    entries: list[Entry] = []
    for rows in pages().values():
        decisions = decide(rows, known)
        page = {d.claim.id: d.finding for d in decisions if d.finding is not None}
        entries += [_entry(d, known, page, nulls=nulls) for d in decisions]
    return Book(tuple(entries))


def _entry(decision: Decision, known: Mapping[str, Evidence], page: Mapping[str, Judgement], *, nulls: bool) -> Entry:
    found = decision.evidence
    if found is None:
        return Entry(decision)
    warnings = []
    if found.version != normlab.__version__:
        warnings.append(f"the evidence is from normlab {found.version}, and this is {normlab.__version__}")
    then = found.criteria.get(decision.claim.id)
    if then != decision.claim.criterion.text():
        warnings.append(
            "the criterion has changed since it was measured"
            if then
            else "no criterion was on file when it was measured"
        )
    checks = []
    for leaf in differences(decision.claim) if nulls and not decision.claim.withdrawn else []:
        size = len(found.find(leaf.metric, leaf.arm).values)
        if found.find(leaf.metric, leaf.arm).exact:
            continue
        if leaf.null_name in known:
            null = known[leaf.null_name]
            checks.append(null_check(decision.claim, leaf, null=null, page=page, arm_size=size, looks=found.looks))
        else:
            warnings.append(f"no null is on file for {leaf.metric} ({leaf.null_name})")
    return Entry(decision, tuple(checks), tuple(warnings))


# -- measuring again -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Rerun:
    """A claim measured again."""

    claim: Claim
    before: Verdict
    now: Decision
    evidence: Evidence | None

    @property
    def holds(self) -> bool:
        return self.evidence is not None and self.before == self.now.verdict

    def to_dict(self) -> dict[str, Plain]:
        shown = {**Entry(self.now).to_plain(), "before": self.before, "holds": self.holds, "answer": self.answer}
        found = plain(shown)
        assert isinstance(found, dict)
        return found

    @property
    def answer(self) -> str:
        if self.evidence is None:
            return f"{self.claim.id} is undecided: {self.now.would_change}"
        if self.now.verdict == "no verdict":
            return f"{self.claim.id} has no verdict. {self.now.sentence}"
        holds = "the verdict holds" if self.holds else f"the ledger says {self.before}"
        return f"{self.claim.id} is {self.now.verdict}; {holds}. {self.now.sentence}"


def run(
    claim: Claim, *, budget: float | None = None, folder: Path = Path("runs/claims"), record: bool = False
) -> Rerun:
    """Measure a claim with as many seeds as the budget (seconds) pays for, and decide it beside the rest of its page."""
    known = read_all()
    before = next(d for d in decide(pages()[claim.seed], known) if d.claim.id == claim.id).verdict
    if isinstance(claim.criterion, NotMeasured):
        raise ConfigError(f"{claim.id} cannot be measured here: {claim.criterion.reason}")
    found = find_measure(claim.evidence)
    seeds = affordable(found, budget)
    if not seeds:
        assert budget is not None
        need = (
            f"{_span(budget)} is too little: {found.least} seeds take about {_span(found.least * found.seconds)}, all "
        )
        need += f"{found.seeds} take {_span(found.cost)}"
        return Rerun(claim, before, Decision(claim, "undecided", "nothing was measured", need), None)
    criteria = {c.id: c.criterion.text() for c in ledger().values() if c.evidence == claim.evidence}
    made = carry_out(found, seeds=seeds, criteria=criteria, folder=folder).after(known.get(found.name))
    made.write(evidence_folder() if record else folder)
    now = next(d for d in decide(pages()[claim.seed], {**known, made.name: made}) if d.claim.id == claim.id)
    return Rerun(claim, before, now, made)


def run_null(name: str, *, folder: Path = Path("runs/claims"), record: bool = False) -> Evidence:
    """Measure the seeds of a null."""
    found = find_measure(name)
    made = carry_out(found, seeds=found.seeds, criteria={}, folder=folder)
    made.write(evidence_folder() if record else folder)
    return made


def seconds(text: str) -> float:
    """A span of time: 90, 90s, 30m, 2h, 1.5h."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"a budget is a time like 90s, 30m or 2h, but is {text!r}")
    return float(match[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def _span(value: float) -> str:
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    return f"{value / 60:.1f} min" if value >= 60 else f"{value:.3g} s"


__all__: Sequence[str] = (
    "Book",
    "Entry",
    "Rerun",
    "claims",
    "evidence_folder",
    "read_all",
    "run",
    "run_null",
    "seconds",
)
