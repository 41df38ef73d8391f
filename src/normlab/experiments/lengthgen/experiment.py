"""Length generalization: schemes x fixes x seeds on one task, each scored at every length with raw, EMA and BEMA weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from normlab import plugins
from normlab.errors import InputError
from normlab.experiments.command import command_line
from normlab.experiments.lengthgen import page as pages
from normlab.experiments.lengthgen.against_first import against_first
from normlab.experiments.lengthgen.analyse import calm, closed_form, run_notes, score_rows, summarise
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.lengthgen.result import LengthGeneralization
from normlab.experiments.protocol import Experiment, Wave
from normlab.experiments.request import Request
from normlab.experiments.runs.config import OLD_START, RunConfig
from normlab.experiments.runs.records import read_run
from normlab.experiments.runs.score import ByLength
from normlab.experiments.runs.stack import stacks
from normlab.experiments.sweep import Settled, read_request, unfinished
from normlab.model import TransformerConfig
from normlab.report import Page
from normlab.schemes.names import parse_scheme, to_record
from normlab.training import Schedule, TrainConfig
from normlab.training.loop import AverageConfig

FIX_OPTIONS: dict[str, dict[str, object]] = {
    "none": {},
    "ssmax": {"softmax": "ssmax"},
    "adaptive": {"softmax": "adaptive"},
    "head_norm": {"head_norm": True},
    "sparsemax": {"softmax": "sparsemax"},
    "top_k": {"softmax": "top_k"},
}


MOST_BETWEEN_CHECKPOINTS = 20_000
"""Steps; a long run that is stopped should not lose an hour."""


class Lengthgen(Experiment[LengthgenRequest, LengthGeneralization]):
    """`normlab lengthgen`."""

    request: ClassVar[type[Request]] = LengthgenRequest
    file: ClassVar[str] = "lengthgen.json"

    def check(self, request: LengthgenRequest) -> None:
        request.task.check(request.batch, request.train_length)
        runs_of(request)

    def plan(self, request: LengthgenRequest, settled: Settled, waves: int, folder: Path) -> Wave | None:
        return Wave("steps", runs_of(request)) if waves == 0 else None

    def analyse(self, folders: Sequence[Path], *, baseline: str | None = None) -> LengthGeneralization:
        if len(folders) > 1:
            raise InputError(
                "length experiments do not merge; give one folder, or add schemes and seeds to the first one's command"
            )
        folder, request = Path(folders[0]), read_request(folders[0], LengthgenRequest)
        with plugins.records():
            wanted = runs_of(request)
        runs = {name: run for name in wanted if (run := read_run(folder / name)) is not None}
        if not runs:
            raise InputError(f"no finished run was found in {str(folder)!r}; run the sweep first")
        rows = score_rows(request, runs)
        summary = summarise(rows)
        return LengthGeneralization(
            notes=unfinished(folder, least=len(wanted)),
            command=command_line(request, folder),
            config=request,
            rows=rows,
            summary=summary,
            against_first=against_first(rows),
            closed_form=closed_form(request, summary),
            stability=calm(request, runs),
            runs=run_notes(runs, {name for names in stacks(folder) for name in names}),
        )

    def page(self, result: LengthGeneralization) -> Page:
        return pages.build(result)

    def tables(self, result: LengthGeneralization) -> Mapping[str, str]:
        return {"lengthgen.csv": pages.to_csv(result.rows)}

    def show(self, result: LengthGeneralization) -> None:
        pages.show(result)


EXPERIMENT = Lengthgen()


@dataclass(frozen=True)
class _Point:
    """One combination of what is swept, but for scheme and seed."""

    positions: str
    fix: str
    dim: int | None
    head_dim: int | None
    lr: float


def runs_of(request: LengthgenRequest) -> dict[str, RunConfig]:
    """Run name -> configuration."""
    found = {}
    seeds = range(request.first_seed, request.first_seed + request.seeds)
    score = ByLength(lengths=request.test_lengths, count=request.test_count, task=request.test_task)
    for point in _points(request):
        # A setting is part of the name where it varies, so that a plain run keeps its plain name.
        tags = [
            *([point.fix] if point.fix != "none" else []),
            *([f"d{point.dim}"] if len(request.dims) > 1 else []),
            *([f"dv{point.head_dim}"] if len(request.head_dims) > 1 else []),
            *([f"lr{point.lr:g}"] if len(request.lrs) > 1 else []),
        ]
        for scheme, seed in itertools.product(request.schemes, seeds):
            found["-".join([file_name(scheme), *tags, point.positions, f"seed{seed}"])] = RunConfig(
                model=_model(request, point, scheme),
                task=request.task,
                train=_train(request, seed, point.lr),
                score=score,
            )
    return found


def file_name(scheme: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "_=." else "-" for sign in scheme).strip("-")


def _points(request: LengthgenRequest) -> Iterator[_Point]:
    dims, head_dims = request.dims or (None,), request.head_dims or (None,)
    for values in itertools.product(request.positions, request.fixes, dims, head_dims, request.lrs):
        yield _Point(*values)


def _model(request: LengthgenRequest, point: _Point, scheme: str) -> TransformerConfig:
    v = request.task.vocab_size
    minimal = request.preset == "minimal"
    dim = point.dim or (max(v - 1, 2) if minimal else 64)
    return TransformerConfig.from_dict(
        {
            "vocab_size": v,
            "dim": dim,
            "depth": request.depth or (1 if minimal else 2),
            "heads": 1 if minimal else 4,
            "head_dim": point.head_dim,
            "ffn": "none" if minimal else "gelu",
            "scheme": to_record(parse_scheme(scheme)),
            "positions": point.positions,
            "max_length": request.max_length or max(*request.test_lengths, request.train_length),
            "tie_embeddings": False,
            **_start(request, dim),
            "norm": request.norm,
            **FIX_OPTIONS[point.fix],
        }
    )


def _start(request: LengthgenRequest, dim: int) -> dict[str, object]:
    """The minimal model's embedding is a table of N(0, 1/d) that nothing multiplies, as in the paper's theory."""
    if request.start == "old":
        return {**OLD_START, "init_std": dim**-0.5}
    return {"start": "fair", **({"embedding_scale": 1.0} if request.preset == "minimal" else {})}


def _train(request: LengthgenRequest, seed: int, lr: float) -> TrainConfig:
    steps = request.steps
    return TrainConfig(
        steps=steps,
        batch=request.batch,
        length=request.train_length,
        seed=seed,
        lr=lr,
        weight_decay=request.weight_decay,
        schedule=Schedule(kind=request.schedule, warmup=min(max(steps // 50, 1), 1000)),
        average=AverageConfig(
            every=request.average_every or max(steps // 2000, 1),
            eta=request.average_eta,
            burn_in=request.average_burn_in,
        ),
        log_every=max(steps // 200, 1),
        evaluate_at=request.evaluate_at,
        checkpoint_every=min(max(steps // 10, 1), MOST_BETWEEN_CHECKPOINTS),
    )
