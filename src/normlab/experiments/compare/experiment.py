"""The fair comparison: same data and seeds for all, the learning rate tuned for each scheme, then more seeds at it.

    1  every scheme x every rate, with the first seed (or more); where the best rate is the last of the grid, it grows
    2  the best rate of each scheme with the other seeds

The first seed's run at the best rate is both the end of the tuning and one of the seeds; the sentences give the
difference without it too. With a `tune_share` below 1 the tuning runs are shorter, lie in the folder `tuning`, and all
seeds are run at the rate that they chose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from normlab.experiments import timing
from normlab.experiments.compare import page, tables
from normlab.experiments.compare.analyse import analyse, best_rate
from normlab.experiments.compare.budget import settle_steps, time_steps
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.compare.result import Comparison
from normlab.experiments.compare.terminal import show
from normlab.experiments.executors.protocol import Executor
from normlab.experiments.protocol import Experiment, Wave
from normlab.experiments.request import Request
from normlab.experiments.runs.config import OLD_START, RunConfig
from normlab.experiments.runs.records import FinishedRun, read_run
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.shapes import round_3, run_name
from normlab.experiments.sweep import Settled, Sweep, read_all, read_request, read_runs, unfinished
from normlab.model import TransformerConfig
from normlab.report import Page
from normlab.schemes import SchemeConfig
from normlab.schemes.names import label, parse_scheme
from normlab.schemes.recipes import Recipe, recipe_of
from normlab.schemes.registry import UnknownScheme
from normlab.surgery.backbone.config import BackboneConfig
from normlab.surgery.backbone.model import Backbone, check_causal
from normlab.training import Schedule, TrainConfig
from normlab.training.loop import AverageConfig

SchemeAtDepth = tuple[str, int]  # scheme, depth
TUNING = "tuning/"  # where tuning runs lie that are shorter than the others


class Compare(Experiment[CompareRequest, Comparison]):
    """`normlab compare`."""

    request: ClassVar[type[Request]] = CompareRequest
    file: ClassVar[str] = "comparison.json"

    def check(self, request: CompareRequest) -> None:
        for number, arm in enumerate(_arms(request)):
            config = run_of(request, arm, lr=request.lrs[0], seed=0, steps=10)
            if isinstance(config.model, BackboneConfig):
                config.check()
                config.model.check()
                if number == 0:
                    check_causal(Backbone(config.model))

    def settle(self, request: CompareRequest, executor: Executor) -> Settled:
        def times() -> Mapping[SchemeAtDepth, float]:
            runs = {arm: run_of(request, arm, lr=1e-4, seed=0, steps=10) for arm in _arms(request)}
            return time_steps(runs, executor.device)

        return {"steps": settle_steps(request, times, workers=max(1, executor.at_once))}

    def plan(self, request: CompareRequest, settled: Settled, waves: int, folder: Path) -> Wave | None:
        steps = settled["steps"]
        if waves <= request.extend:
            short = max(1, round(steps * request.tune_share))
            wanted = {
                f"{TUNING if request.tuned_apart else ''}{run_name(*arm, lr, seed)}": run_of(
                    request, arm, lr=lr, seed=seed, steps=short
                )
                for arm, rates in _grids(request, folder, waves)
                for lr in rates
                for seed in range(request.tune_seeds)
            }
            return Wave("tuning" if waves == 0 else "tuning, wider", wanted)
        if waves > request.extend + 1:
            return None
        chosen = {arm: best_rate(found)[0] for arm, found in _tuned(request, folder).items()}
        rest = {
            run_name(*arm, lr, seed): run_of(request, arm, lr=lr, seed=seed, steps=steps)
            for seed in range(0 if request.tuned_apart else request.tune_seeds, request.seeds)
            for arm, lr in chosen.items()
        }
        return Wave("seeds", rest)

    def finish(self, request: CompareRequest, settled: Settled, sweep: Sweep) -> None:
        steps = settled["steps"]
        timed = [
            (arm[0], run_of(request, arm, lr=request.lrs[0], seed=0, steps=steps))
            for arm in sorted(_tuned(request, sweep.folder))
        ]
        timing.measure(sweep.folder, timed, device=sweep.executor.device, quiet=sweep.quiet)

    def analyse(self, folders: Sequence[Path], *, baseline: str | None = None) -> Comparison:
        requests = [read_request(folder, CompareRequest) for folder in folders]
        notes = [
            note
            for folder, request in zip(folders, requests, strict=True)
            for note in unfinished(folder, least=request.least_runs())
        ]
        notes += [_tuning_note(request) for request in requests if request.tuned_apart]
        notes += [_backbone_note(request) for request in requests if request.backbone is not None]
        asked = baseline or (requests[0].baseline if len(requests) == 1 else None)
        runs = read_all(folders)
        notes += _not_loaded(runs)
        return analyse(runs, baseline=asked, costs=timing.read_costs(folders), notes=notes)

    def page(self, result: Comparison) -> Page:
        return page.build(result)

    def tables(self, result: Comparison) -> Mapping[str, str]:
        return {"tables.md": tables.markdown(result), "cells.csv": tables.runs_csv(result.cells)}

    def show(self, result: Comparison) -> None:
        show(result)


EXPERIMENT = Compare()


def run_of(request: CompareRequest, arm: SchemeAtDepth, *, lr: float, seed: int, steps: int) -> RunConfig:
    scheme, depth = arm
    # Shares of so few steps round to nothing: one step of warm-up is the least.
    warmup = min(steps, max(1, round(request.warmup * steps))) if request.warmup > 0 else 0
    config = parse_scheme(scheme)
    own = recipe_of(config) if request.start == "old" and request.recipe == "authors" else Recipe()
    return RunConfig(
        model=_model_of(request, config, depth, own),
        task=request.task,
        recipe=request.recipe,
        train=TrainConfig(
            optimizer=request.optimizer,
            **own.train_settings(),  # type: ignore[arg-type]
            steps=steps,
            batch=request.batch,
            length=request.length,
            seed=seed,
            lr=lr,
            schedule=Schedule(kind="wsd", warmup=warmup, decay=request.decay),
            average=AverageConfig(every=max(1, min(10, steps // 50))),
            log_every=max(1, steps // 200),
            checkpoint_every=max(20, steps // 5),
        ),
        score=request.measure or HeldOut.scaled(steps=steps, batch=request.batch, depth=depth),
    )


def _model_of(
    request: CompareRequest, scheme: SchemeConfig, depth: int, own: Recipe
) -> TransformerConfig | BackboneConfig:
    size = {"vocab_size": request.task.vocab_size, "dim": request.dim, "depth": depth, "heads": request.heads}
    if request.backbone is not None:
        return BackboneConfig.sized(request.backbone, scheme, **size)
    taken: dict[str, object] = {**own.model_settings(request.dim, qk_norm=scheme.demands().qk_norm is None)}
    if request.start == "old":  # 0.02 where the recipe says nothing
        taken = {**OLD_START, **taken}
    tied = request.task.embedding(request.dim) is None
    return TransformerConfig.from_dict({**size, **taken, "scheme": scheme.to_dict(), "tie_embeddings": tied})


def _backbone_note(request: CompareRequest) -> str:
    return (
        f"The models are random ones of the architecture {request.backbone}, with its own embedding, norms and "
        "initialisation; each scheme is swapped in as its authors start it, but for what they change inside branches."
    )


def _not_loaded(runs: Sequence[FinishedRun]) -> list[str]:
    """What cannot be shown of schemes whose code is not here, and how to see it."""
    schemes = {run.config.model.scheme.name: run.config.model.scheme for run in runs}
    return [
        f"The code of the scheme {name!r} is not loaded: its runs are shown, its predicted stream and arithmetic are not. "
        f"To see them, run the command that trained it again ({scheme.remedy})."
        for name, scheme in schemes.items()
        if isinstance(scheme, UnknownScheme)
    ]


def _arms(request: CompareRequest) -> list[SchemeAtDepth]:
    return [(scheme, depth) for depth in request.depths for scheme in request.schemes]


def _grids(request: CompareRequest, folder: Path, round_: int) -> Iterator[tuple[SchemeAtDepth, list[float]]]:
    """The rates to run: the grid first, then one more on the side where the best lies at the end of it."""
    if round_ == 0:
        for arm in _arms(request):
            yield arm, list(request.lrs)
        return
    for arm, runs in _tuned(request, folder).items():
        best, table = best_rate(runs)
        rates = [rate.lr for rate in table]
        if len(rates) < 2 or len(rates) - len(request.lrs) >= round_:  # grown this often already, in an earlier run
            continue
        if best == rates[-1]:
            yield arm, [round_3(best * rates[-1] / rates[-2])]
        elif best == rates[0]:
            yield arm, [round_3(best * rates[0] / rates[1])]


def _tuning_note(request: CompareRequest) -> str:
    return (
        f"Rates were chosen among {', '.join(f'{lr:g}' for lr in request.lrs)}, and beyond where the best was at an end, by "
        f"runs of their own: {request.tune_seeds} seeds, {100 * request.tune_share:g} % of the length."
    )


def _tuned(request: CompareRequest, folder: Path) -> dict[SchemeAtDepth, list[FinishedRun]]:
    """The finished tuning runs of each scheme and depth; what failed is missing."""
    found: dict[SchemeAtDepth, list[FinishedRun]] = {}
    if request.tuned_apart:
        places = sorted(path.parent for path in (folder / TUNING).glob("*/config.yaml"))
        runs = [run for place in places if (run := read_run(place)) is not None]
    else:
        runs = read_runs(folder)
    for run in runs:
        if run.seed < request.tune_seeds:
            found.setdefault((label(run.config.model.scheme), run.config.model.depth), []).append(run)
    return found
