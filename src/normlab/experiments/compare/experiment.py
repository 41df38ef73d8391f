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

import torch

from normlab import plugins
from normlab.experiments import timing
from normlab.experiments.compare import page, tables
from normlab.experiments.compare.analyse import TUNING, analyse, best_rate
from normlab.experiments.compare.arms import Arm
from normlab.experiments.compare.budget import ENOUGH, settle_size, time_steps
from normlab.experiments.compare.request import DEFAULT_BUDGET, CompareRequest
from normlab.experiments.compare.result import Comparison
from normlab.experiments.compare.terminal import show
from normlab.experiments.executors.protocol import Executor
from normlab.experiments.protocol import Experiment, Wave
from normlab.experiments.request import Request
from normlab.experiments.runs.config import OLD_START, RunConfig
from normlab.experiments.runs.records import FinishedRun, read_run
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.shapes import round_3
from normlab.experiments.sweep import Settled, Sweep, read_all, read_request, read_runs, read_sweep, unfinished
from normlab.model import Transformer, TransformerConfig
from normlab.report import Page
from normlab.schemes import SchemeConfig
from normlab.schemes.names import parse_scheme
from normlab.schemes.recipes import Recipe, recipe, recipe_of
from normlab.schemes.registry import UnknownScheme
from normlab.surgery.backbone.config import BackboneConfig
from normlab.surgery.backbone.model import Backbone, check_causal
from normlab.training import Schedule, TrainConfig
from normlab.training.loop import AverageConfig


class Compare(Experiment[CompareRequest, Comparison]):
    """`normlab compare`."""

    request: ClassVar[type[Request]] = CompareRequest
    file: ClassVar[str] = "comparison.json"

    def check(self, request: CompareRequest) -> None:
        for number, arm in enumerate(request.arms()):
            config = run_of(request, arm, lr=request.lrs[0], seed=0, steps=10)
            if isinstance(config.model, BackboneConfig):
                config.check()
                config.model.check()
                if number == 0:
                    check_causal(Backbone(config.model))

    def settle(self, request: CompareRequest, executor: Executor) -> Settled:
        def times() -> Mapping[Arm, float]:
            return time_steps({arm: untrained(arm) for arm in request.arms()}, executor.device)

        def untrained(arm: Arm) -> RunConfig:
            return run_of(request, arm, lr=1e-4, seed=0, steps=10)

        def parameters() -> int:
            model = untrained(Arm(request.reference, max(request.depths))).model
            if isinstance(model, BackboneConfig):
                return Backbone(model).num_parameters()
            with torch.device("meta"):
                return Transformer(model).num_parameters()

        return settle_size(request, times, parameters, workers=max(1, executor.at_once))

    def plan(self, request: CompareRequest, settled: Settled, waves: int, folder: Path) -> Wave | None:
        steps, request = settled["steps"], request.settled(settled)
        if waves <= request.extend:
            short = max(1, round(steps * request.tune_share))
            place = f"{TUNING}/" if request.tuned_apart else ""
            wanted = {
                f"{place}{arm.run(lr, seed)}": run_of(request, arm, lr=lr, seed=seed, steps=short)
                for arm, rates in _grids(request, folder, waves)
                for lr in rates
                for seed in range(request.tune_seeds)
            }
            return Wave("tuning" if waves == 0 else "tuning, wider", wanted)
        if waves > request.extend + 1:
            return None
        chosen = {arm: best_rate(found)[0] for arm, found in _tuned(request, folder).items()}
        rest = {
            arm.run(lr, seed): run_of(request, arm, lr=lr, seed=seed, steps=steps)
            for seed in range(0 if request.tuned_apart else request.tune_seeds, request.seeds)
            for arm, lr in chosen.items()
        }
        return Wave("seeds", rest)

    def finish(self, request: CompareRequest, settled: Settled, sweep: Sweep) -> None:
        steps = settled["steps"]
        timed = [
            (arm.label, run_of(request, arm, lr=request.lrs[0], seed=0, steps=steps))
            for arm in sorted(_tuned(request, sweep.folder))
        ]
        timing.measure(sweep.folder, timed, device=sweep.executor.device, quiet=sweep.quiet)

    @plugins.records()
    def analyse(self, folders: Sequence[Path], *, baseline: str | None = None) -> Comparison:
        notes: list[str] = []
        requests = []
        for folder in folders:
            asked, decided = read_request(folder, CompareRequest), read_sweep(folder).settled
            requests.append(request := asked.settled(decided))
            notes += unfinished(folder, least=request.least_runs())
            notes += [_seeds_note(asked, request.seeds)] if request.seeds < asked.seeds else []
        notes += [_tuning_note(request) for request in requests if request.tuned_apart]
        notes += [_backbone_note(request) for request in requests if request.backbone is not None]
        named = baseline or (requests[0].baseline if len(requests) == 1 else None)
        runs = read_all(folders)
        notes += _not_loaded(runs)
        return analyse(runs, baseline=named, costs=timing.read_costs(folders), notes=notes)

    def page(self, result: Comparison) -> Page:
        return page.build(result)

    def tables(self, result: Comparison) -> Mapping[str, str]:
        return {"tables.md": tables.markdown(result), "cells.csv": tables.runs_csv(result.cells)}

    def show(self, result: Comparison) -> None:
        show(result)


EXPERIMENT = Compare()


def run_of(request: CompareRequest, arm: Arm, *, lr: float, seed: int, steps: int) -> RunConfig:
    # Shares of so few steps round to nothing: one step of warm-up is the least.
    warmup = min(steps, max(1, round(request.warmup * steps))) if request.warmup > 0 else 0
    scheme = parse_scheme(arm.scheme)
    own = Recipe()
    if request.has_controls:
        own = recipe(arm.recipe)
    elif request.recipe == "authors":
        own = recipe_of(scheme)
    return RunConfig(
        model=_model_of(request, scheme, arm, own),
        task=request.task,
        recipe=request.recipe,
        recipe_of=arm.recipe if request.has_controls else None,
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
        score=request.measure or HeldOut.scaled(steps=steps, batch=request.batch, depth=arm.depth),
    )


def _model_of(
    request: CompareRequest, scheme: SchemeConfig, arm: Arm, own: Recipe
) -> TransformerConfig | BackboneConfig:
    size = {"vocab_size": request.task.vocab_size, "dim": request.dim, "depth": arm.depth, "heads": request.heads}
    if request.backbone is not None:
        return BackboneConfig.sized(request.backbone, scheme, **size)
    qk_norm = scheme.demands().qk_norm is None
    if request.start == "old":  # 0.02 where the recipe says nothing
        taken: dict[str, object] = {**OLD_START, **own.model_settings(request.dim, qk_norm=qk_norm)}
    else:
        taken = {**own.start_settings(request.dim, qk_norm=qk_norm, of_another=bool(arm.start_of))}
    tied = request.task.embedding(request.dim) is None
    return TransformerConfig.from_dict({**size, **taken, "scheme": scheme.to_dict(), "tie_embeddings": tied})


def _backbone_note(request: CompareRequest) -> str:
    return (
        f"The models are random ones of the architecture {request.backbone}, with its own embedding, norms and "
        "initialisation for all; a scheme's own parameters start as its definition says."
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


def _grids(request: CompareRequest, folder: Path, round_: int) -> Iterator[tuple[Arm, list[float]]]:
    """The rates to run: the grid first, then one more on the side where the best lies at the end of it."""
    if round_ == 0:
        for arm in request.arms():
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


def _seeds_note(asked: CompareRequest, seeds: int) -> str:
    return (
        f"{seeds} random seeds instead of {asked.seeds}: with more, a budget of {asked.budget or DEFAULT_BUDGET} has no time "
        f"for {ENOUGH:g} training tokens for each parameter of {asked.reference}. --seeds {asked.seeds} runs them all."
    )


def _tuning_note(request: CompareRequest) -> str:
    return (
        f"Rates were chosen among {', '.join(f'{lr:g}' for lr in request.lrs)}, and beyond where the best was at an end, by "
        f"runs of their own: {request.tune_seeds} seeds, {100 * request.tune_share:g} % of the length."
    )


def _tuned(request: CompareRequest, folder: Path) -> dict[Arm, list[FinishedRun]]:
    """The finished tuning runs of each scheme and depth; what failed is missing."""
    found: dict[Arm, list[FinishedRun]] = {}
    if request.tuned_apart:
        places = sorted(path.parent for path in (folder / TUNING).glob("*/config.yaml"))
        runs = [run for place in places if (run := read_run(place)) is not None]
    else:
        runs = read_runs(folder)
    for run in runs:
        if run.seed < request.tune_seeds:
            found.setdefault(Arm.of(run.config), []).append(run)
    return found
