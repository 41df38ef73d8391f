"""Which start serves all schemes? Candidates, each at its best rate, judged by the worst regret over schemes and widths.

    python tools/start_candidates.py RUNS [--seeds 1] [--widths 32,64]
    python tools/start_candidates.py docs/results/start --table           the stored table of docs/start.md

Regret: the held-out loss of a candidate less the lowest of all candidates for the same scheme and width. The candidate
with the smallest worst regret is the fair start. Rates are factors of about 3 apart and grow on both sides until the best
lies inside. Runs are the small ladder's (6 layers, 820 steps of 16 x 64 bytes); it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import prepare
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.runs.trainer import run_folder
from normlab.model import TransformerConfig
from normlab.schemes import base
from normlab.tasks import Text
from normlab.training import Schedule, TrainConfig

SCHEMES = ("pre_norm", "post_norm", "peri_norm", "block_attn_res")
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
FIRST = {"post_norm": (2, 3)}  # where the search begins, as places in RATES
DEPTH, STEPS, BATCH, LENGTH = 6, 820, 16, 64


@dataclass(frozen=True)
class Candidate:
    """`power`: output projections are multiplied by branches^-power. `unit`: the embedding opens the stream at size 1."""

    name: str
    power: float = 0.0
    unit: bool = True
    factor: float = 1.0
    authors: bool = False

    def model(self, scheme: str, dim: int) -> TransformerConfig:
        own = {"start": "authors"} if self.authors else {
            "start_factor": self.factor, "embedding_scale": None if self.unit else 1.0
        }  # fmt: skip
        return TransformerConfig.from_dict(
            {"vocab_size": 256, "dim": dim, "depth": DEPTH, "heads": 4, "scheme": scheme, **own}
        )


CANDIDATES = (
    Candidate("unit"),
    Candidate("unit, out / sqrt(2L)", power=0.5),
    Candidate("small embedding", unit=False),
    Candidate("small embedding, out / sqrt(2L)", power=0.5, unit=False),
    Candidate("unit, 0.55, out / sqrt(2L)", factor=0.55, power=0.5),
    Candidate("unit, 1.4, out / sqrt(2L)", factor=1.4, power=0.5),
    Candidate("authors' initialisation (before)", authors=True),
)


@contextmanager
def outputs_scaled(power: float) -> Iterator[None]:
    usual = base.output_factor
    base.output_factor = lambda branches: float(branches**-power)
    try:
        yield
    finally:
        base.output_factor = usual


def loss(runs: Path, candidate: Candidate, scheme: str, dim: int, rate: float, seed: int) -> float:
    """The held-out loss of one run, which is trained unless it is there; infinite where it diverged."""
    name = f"{CANDIDATES.index(candidate)}-{scheme}-d{dim}-lr{rate:g}-s{seed}"
    for row in stored(runs):
        if row["name"] == name and row["candidate"] == candidate.name:
            return float(str(row["loss"]))
    config = RunConfig(
        model=candidate.model(scheme, dim), task=Text(),
        train=TrainConfig(
            steps=STEPS, batch=BATCH, length=LENGTH, seed=seed, lr=rate, log_every=20, checkpoint_every=STEPS,
            schedule=Schedule(kind="wsd", warmup=STEPS // 10, decay=0.3),
        ),
        score=HeldOut(validations=1, curve_sequences=64, sequences=256, layers=(), prune=False),
    )  # fmt: skip
    with outputs_scaled(candidate.power):
        (run,) = run_folder(prepare(runs / name, config))
    found = run.summary.loss if run.summary.status == "finished" and run.summary.loss is not None else float("inf")
    row = {
        "name": name,
        "candidate": candidate.name,
        "scheme": scheme,
        "dim": dim,
        "lr": rate,
        "seed": seed,
        "loss": found,
    }
    with (runs / "losses.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    return found


def tuned(runs: Path, candidate: Candidate, scheme: str, dim: int) -> tuple[float, float]:
    """The best rate, with a worse one on either side, and its loss with the first seed."""
    first, last = FIRST.get(scheme, (3, 4))
    losses = {i: loss(runs, candidate, scheme, dim, RATES[i], 0) for i in (first, last)}
    while True:
        best = min(losses, key=lambda i: losses[i])
        missing = [i for i in (best - 1, best + 1) if i not in losses and 0 <= i < len(RATES)]
        if not missing:
            return RATES[best], losses[best]
        losses[missing[0]] = loss(runs, candidate, scheme, dim, RATES[missing[0]], 0)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Of stored losses: the best rate of each cell (first seed) and its regret, as Markdown.

    A cell counts where its best rate has a worse one on either side; a candidate that lacks one has a bound alone.
    """
    losses: dict[tuple[str, str, int], dict[float, float]] = {}
    for row in rows:
        if row["seed"] == 0:
            cell = (str(row["candidate"]), str(row["scheme"]), int(str(row["dim"])))
            losses.setdefault(cell, {})[float(str(row["lr"]))] = float(str(row["loss"]))
    best = {cell: (rate, found[rate]) for cell, found in losses.items() if (rate := _inside(found)) is not None}
    columns = sorted({cell[1:] for cell in best}, key=lambda column: (column[1], SCHEMES.index(column[0])))
    lowest = {column: min(loss for cell, (_, loss) in best.items() if cell[1:] == column) for column in columns}
    lines = []
    for candidate in CANDIDATES:
        cells = {column: best.get((candidate.name, *column)) for column in columns}
        regrets = [found[1] - lowest[column] for column, found in cells.items() if found is not None]
        if not regrets:
            continue
        worst = f"{'' if len(regrets) == len(columns) else 'at least '}{max(regrets):.3f}"
        shown = [
            "-" if found is None else f"{found[1]:.3f} (+{found[1] - lowest[column]:.3f}) at {found[0]:g}"
            for column, found in cells.items()
        ]
        lines.append(
            (len(columns) - len(regrets), max(regrets), f"| {candidate.name} | {worst} | " + " | ".join(shown) + " |")
        )
    head = "| start | worst regret | " + " | ".join(f"`{scheme}`, {dim}" for scheme, dim in columns) + " |"
    return "\n".join([head, "|" + "---|" * (len(columns) + 2), *(line for *_, line in sorted(lines))])


def _inside(losses: Mapping[float, float]) -> float | None:
    """The best rate, if a worse one was tried on either side."""
    rates = sorted(losses)
    place = min(range(len(rates)), key=lambda i: losses[rates[i]])
    return rates[place] if 0 < place < len(rates) - 1 else None


def stored(runs: Path) -> list[dict[str, object]]:
    path = runs / "losses.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, default=1, help="random seeds at the best rate")
    parser.add_argument("--widths", default="32,64")
    parser.add_argument("--candidates", default=",".join(str(i) for i in range(len(CANDIDATES))))
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and train nothing")
    options = parser.parse_args()
    if not options.table:
        options.runs.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(1)
        for dim in (int(width) for width in options.widths.split(",")):
            for candidate in (CANDIDATES[int(i)] for i in options.candidates.split(",")):
                for scheme in SCHEMES:
                    rate, _ = tuned(options.runs, candidate, scheme, dim)
                    for seed in range(1, options.seeds):
                        loss(options.runs, candidate, scheme, dim, rate, seed)
    print(table(stored(options.runs)))


if __name__ == "__main__":
    sys.exit(main())
