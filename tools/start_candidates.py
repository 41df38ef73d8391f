"""Which start serves all schemes? Candidates, each at its best rate, judged by the worst regret over schemes and widths.

    python tools/start_candidates.py RUNS [--seeds 1] [--widths 32,64]

Regret: the held-out loss of a candidate less the lowest of all candidates for the same scheme and width. The candidate
with the smallest worst regret is the fair start. Rates are factors of about 3 apart and grow on both sides until the best
lies inside. Runs are the small ladder's (6 layers, 820 steps of 16 x 64 bytes); it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

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
    """`power`: output projections are multiplied by branches^-power. `unit`: the embedding opens the stream at mean square 1."""

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
    Candidate("unit, 0.55", factor=0.55),
    Candidate("unit, 0.55, out / sqrt(2L)", factor=0.55, power=0.5),
    Candidate("unit, 1.4", factor=1.4),
    Candidate("authors' initialisation (before)", authors=True),
)


@contextmanager
def outputs_scaled(power: float) -> Iterator[None]:
    usual = base.output_factor
    base.output_factor = lambda branches: branches**-power
    try:
        yield
    finally:
        base.output_factor = usual


def loss(runs: Path, candidate: Candidate, scheme: str, dim: int, rate: float, seed: int) -> float:
    """The held-out loss of one run, which is trained unless it is there; infinite where it diverged."""
    name = f"{CANDIDATES.index(candidate)}-{scheme}-d{dim}-lr{rate:g}-s{seed}"
    stored = runs / "losses.jsonl"
    for line in stored.read_text().splitlines() if stored.exists() else ():
        row = json.loads(line)
        if row["name"] == name and row["candidate"] == candidate.name:
            return float(row["loss"])
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
    with stored.open("a") as file:
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--widths", default="32,64")
    parser.add_argument("--candidates", default=",".join(str(i) for i in range(len(CANDIDATES))))
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    chosen = [CANDIDATES[int(i)] for i in options.candidates.split(",")]
    widths = [int(width) for width in options.widths.split(",")]
    cells = {
        (candidate.name, scheme, dim): tuned(options.runs, candidate, scheme, dim)
        for dim in widths
        for candidate in chosen
        for scheme in SCHEMES
    }
    means = {
        (candidate.name, scheme, dim): fmean(
            loss(options.runs, candidate, scheme, dim, cells[candidate.name, scheme, dim][0], seed)
            for seed in range(options.seeds)
        )
        for dim in widths
        for candidate in chosen
        for scheme in SCHEMES
    }
    lowest = {(s, d): min(means[c.name, s, d] for c in chosen) for d in widths for s in SCHEMES}
    rows = []
    for candidate in chosen:
        regrets = {(s, d): means[candidate.name, s, d] - lowest[s, d] for d in widths for s in SCHEMES}
        rows.append((max(regrets.values()), candidate.name, regrets))
    head = [f"{scheme} {dim}" for dim in widths for scheme in SCHEMES]
    print("| start | worst regret | " + " | ".join(head) + " |\n|" + "---|" * (len(head) + 2))
    for worst, name, regrets in sorted(rows, key=lambda row: row[0]):
        shown = [f"{means[name, s, d]:.3f} (+{r:.3f}) at {cells[name, s, d][0]:g}" for (s, d), r in regrets.items()]
        print(f"| {name} | {worst:.3f} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    sys.exit(main())
