"""What a campaign has done so far: one line of JSON a trial, so that it can be stopped, killed, and gone on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Trial:
    """`tried` blows of one kind, `row`; `fault` says what was wrong afterwards. `number` and `seed` make it again."""

    row: str
    tried: int
    fault: str | None = None
    number: int = 0
    seed: int = 0
    commit: str = ""


@dataclass(frozen=True)
class Timing:
    """Something that was measured on the way, in seconds."""

    name: str
    seconds: float
    note: str


@dataclass
class Tally:
    """What a kind of fault did."""

    name: str
    tried: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)

    def add(self, trial: Trial) -> None:
        self.tried += trial.tried
        if trial.fault is None:
            self.survived += trial.tried
        else:
            self.lost += [trial.fault] * trial.tried


@dataclass
class Ledger:
    """A file of trials. A last line that a kill cut short is forgotten."""

    path: Path
    trials: list[Trial] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)

    def __post_init__(self) -> None:
        for value in self._lines():
            if "row" in value:
                self.trials.append(Trial(**value))
            else:
                self.timings.append(Timing(**value))

    def _lines(self) -> Iterator[dict[str, object]]:
        if not self.path.exists():
            return
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if whole != raw:
            os.truncate(self.path, len(whole))
        for line in whole.splitlines():
            yield json.loads(line)

    def add(self, item: Trial | Timing) -> None:
        (self.trials if isinstance(item, Trial) else self.timings).append(item)  # type: ignore[arg-type]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as file:
            file.write(json.dumps(asdict(item)) + "\n")

    def tally(self, row: str) -> Tally:
        found = Tally(row)
        for trial in self.trials:
            if trial.row == row:
                found.add(trial)
        return found

    def next_number(self, row: str, seed: int) -> int:
        return 1 + max((t.number for t in self.trials if (t.row, t.seed) == (row, seed)), default=-1)

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(trial.row for trial in self.trials))

    def table(self) -> str:
        """Markdown: a line for each kind of fault, and one for all kills, all other blows and all fuzzed input."""
        tallies = [self.tally(row) for row in self.rows]
        sums = [Tally("all kills"), Tally("all other blows"), Tally("all fuzzed input")]
        for trial in self.trials:
            sums[2 if trial.row.startswith("fuzzed") else 0 if "kill" in trial.row else 1].add(trial)
        rows = [(t.name, t.tried, t.survived, len(t.lost)) for t in (*tallies, *(t for t in sums if t.tried))]
        lines = ["| fault | tried | survived | lost |", "|---|---:|---:|---:|"]
        return "\n".join([*lines, *(f"| {name} | {a:,} | {b:,} | {c:,} |" for name, a, b, c in rows)])

    def measured(self) -> str:
        """The fastest of each timing: what others did on the machine only adds."""
        best: dict[str, Timing] = {}
        for timing in self.timings:
            if timing.name not in best or timing.seconds < best[timing.name].seconds:
                best[timing.name] = timing
        return "\n".join(f"- {t.name}: {t.seconds:.2f} s of processor time ({t.note})" for t in best.values())
