"""What is compared, and how long for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from normlab.config import Config
from normlab.errors import ConfigError, canonical, unknown
from normlab.experiments.request import option
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.shapes import GridRequest, round_3

if TYPE_CHECKING:
    from normlab.experiments.compare.arms import Arm

DEFAULT_BUDGET = "10m"
SEEDS, FEWEST = 5, 2


class CompareRequest(GridRequest):
    """`tokens` is per run; `budget` is the time of the whole comparison."""

    what: ClassVar[str] = "comparison"
    kind: ClassVar[str] = "compare"
    grows: ClassVar[tuple[str, ...]] = ("schemes", "depths", "seeds")
    keeps_most: ClassVar[tuple[str, ...]] = ("fewest_seeds",)

    schemes: tuple[str, ...] = option(
        ("post_norm", "pre_norm", "peri_norm", "ln_scaling", "block_attn_res"),
        "Names with commas, options in brackets: block_attn_res(blocks=4); a family; or all.",
    )
    budget: str | None = option(None, f"Time of the whole comparison: 90s, 10m, 2h (default: {DEFAULT_BUDGET}).")
    tokens: int | None = option(None, "Training tokens of each run, instead of a time.", ge=1)
    seeds: int = option(
        SEEDS,
        f"Random seeds of each scheme at its best rate. By default as many of {SEEDS} as the budget has time for, at "
        f"least {FEWEST}.",
        ge=1,
    )
    lrs: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "Learning rates to tune over, with commas.")
    tune_seeds: int = option(1, "Seeds that choose the rate.", ge=1)
    tune_share: float = option(
        1.0, "Length of the tuning runs, as a share of the others; below 1 they are runs of their own.", gt=0, le=1
    )
    recipe: Literal["fair", "authors", "shared"] = option(
        "fair",
        "fair: one start for all; authors: each scheme as its authors run it, where that is known, and pre_norm with each "
        "of their starts beside it.",
    )
    optimizer: Literal["adamw", "muon"] = option("adamw", "adamw, or muon (for the matrices of branches).")
    baseline: str | None = option(None, "What the others are compared with (default: pre_norm, or the first).")
    backbone: str | None = option(
        None,
        "A model's folder or config.json, or kimi_linear: small random models of that architecture, each scheme swapped "
        "in; --dim, --heads and --depth shrink it further.",
    )
    extend: int = Field(default=1, ge=0, description="how often the grid of rates may grow where its last is the best")
    warmup: float = Field(default=0.1, ge=0, le=1, description="share of the steps")
    decay: float = Field(default=0.3, gt=0, le=1, description="share of the steps")
    fewest_seeds: int = Field(
        default=FEWEST, ge=1, description="down to so many a budget may push the seeds; where seeds are given, to them"
    )
    measure: HeldOut | None = Field(default=None, description="null: sizes that suit the length of the runs")

    @field_validator("lrs")
    @classmethod
    def _positive(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if not rates or any(not rate > 0 for rate in rates):
            raise ValueError(f"learning rates are positive numbers, but got {list(rates)}")
        return tuple(sorted({round_3(rate) for rate in rates}))

    def __init__(self, **values: object) -> None:
        """A backbone brings its sizes. Seeds that are given are all run.

        Not a validator: pydantic would then take the lists of a file for Python's own, and refuse them.
        """
        if isinstance(seeds := values.get("seeds"), int) and seeds >= 1:
            values = {"fewest_seeds": seeds, **values}
        if isinstance(source := values.get("backbone"), str) and not {"dim", "depths", "heads"} <= set(values):
            from normlab.surgery.backbone.architecture import sizes

            dim, depth, heads = sizes(source)
            values = {"dim": dim, "depths": [depth], "heads": heads, **values}
        Config.__init__(self, **values)

    @classmethod
    def stored(cls, values: Mapping[str, object]) -> Self:
        """The first folders ask for no recipe: there was one, shared by all."""
        return super().stored(values if "start" in values else {"recipe": "shared", **values})

    @model_validator(mode="after")
    def _own_recipe(self) -> Self:
        if self.backbone is not None and self.recipe == "authors":
            raise ValueError(
                "recipe: 'authors' sets embedding and initialisation, which the backbone brings; leave it out"
            )
        if self.recipe == "fair" and self.start == "old" and self.backbone is None:
            raise ValueError(
                "recipe: this preset repeats stored results, which have no fair start; leave the recipe out, or give the "
                "preset's options by themselves"
            )
        if self.recipe == "shared" and self.start == "fair":
            raise ValueError(
                "recipe: 'shared' belongs to older sweeps, and shares no more than the embedding; give 'fair'"
            )
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.tokens is not None and self.budget is not None:
            raise ValueError("give either tokens (of each run) or a time budget (of the whole comparison), not both")
        if self.baseline is not None:
            pick_baseline(list(self.schemes), self.baseline)
        return self

    def phases(self) -> list[int]:
        """How many runs each scheme and depth has at most in what is run one after the other."""
        wider = [self.tune_seeds] * self.extend if len(self.lrs) > 1 else []
        left = self.seeds if self.tuned_apart else max(self.seeds - self.tune_seeds, 0)
        return [len(self.lrs) * self.tune_seeds, *wider, left]

    @property
    def tuned_apart(self) -> bool:
        """Are the tuning runs shorter than the others, and so none of them?"""
        return self.tune_share < 1

    @property
    def reference(self) -> str:
        """The scheme that the others are compared with."""
        return pick_baseline(list(self.schemes), self.baseline)

    @property
    def has_controls(self) -> bool:
        """Does Pre-Norm run with the starts of the others too?"""
        return self.recipe == "authors" and self.start == "fair"

    def arms(self) -> list[Arm]:
        """All that is trained: schemes and controls at each depth."""
        from normlab.experiments.compare.arms import arms

        return arms(self)

    def most_runs(self) -> int:
        return len(self.arms()) * sum(self.phases())

    def least_runs(self) -> int:
        own = self.seeds if self.tuned_apart else len(self.lrs) * self.tune_seeds + max(self.seeds - self.tune_seeds, 0)
        return len(self.arms()) * own

    def settled(self, decided: Mapping[str, int]) -> Self:
        """With the seeds that were decided on for its folder. Seeds that were asked for since are run, all of them."""
        return self.with_seeds(max(self.fewest_seeds, decided.get("seeds", self.seeds)))

    def with_seeds(self, seeds: int) -> Self:
        return self.replace(seeds=seeds, fewest_seeds=seeds)


def _spelled(name: str) -> str:
    """As its runs are labelled; a name that is no scheme's stays as it is."""
    from normlab.schemes.names import label, parse_scheme  # torch: not for a command that only prints its help

    try:
        return label(parse_scheme(name))
    except ConfigError:
        return name


def pick_baseline(names: list[str], asked: str | None) -> str:
    """The one that is asked for, however it is spelled; without its options where no other has that name."""
    if asked is not None:
        exact = [name for name in names if name in (canonical(asked), _spelled(asked))]
        found = exact or [name for name in names if name.partition("(")[0] == canonical(asked)]
        if not found:
            raise ConfigError(unknown("baseline", asked, names))
        return found[0]
    return "pre_norm" if "pre_norm" in names else names[0]
