"""What is asked: schemes x fixes x positions x widths x rates x seeds on one task, scored at every length.

After "Post-Norm can Resharpen Attention" (arXiv 2510.08341). Its code and most of its settings are not public: the
optimizer's numbers here are ours.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from normlab.errors import ConfigError, canonical, unknown
from normlab.experiments.request import AnyTask, Request, Start, option, task_of
from normlab.experiments.shapes import known_schemes

FOUR = ("pre_norm", "post_norm", "peri_norm", "peri_init_norm")
FIXES = ("none", "ssmax", "adaptive", "head_norm", "sparsemax", "top_k")
Positions = Literal["nope", "rope", "learned", "sinusoidal"]
Positive = Annotated[float, Field(gt=0)]
Width = Annotated[int, Field(ge=1)]


def default_task() -> AnyTask:
    from normlab.tasks import SetComplement

    return SetComplement()


class LengthgenRequest(Request):
    """The experiment. Tuples may be given as lists, as YAML has them."""

    what: ClassVar[str] = "length generalization experiment"
    kind: ClassVar[str] = "lengthgen"
    grows: ClassVar[tuple[str, ...]] = ("schemes", "fixes", "positions", "seeds")

    task: AnyTask = option(default_task, "set-complement, max-retrieval, dyck, tomita or text; options by --set.")
    test_task: AnyTask | None = option(None, "Score on this task instead, for example a deeper Dyck.")
    preset: Literal["minimal", "two_layer"] = option("minimal", "minimal or two-layer.")
    schemes: tuple[str, ...] = option(
        FOUR, "Names with commas, options in brackets; the others are compared with the first.", strict=False
    )
    fixes: tuple[str, ...] = option(("none",), f"{', '.join(FIXES)}, with commas.", strict=False)
    positions: tuple[Positions, ...] = option(("nope",), "nope, rope, learned, sinusoidal, with commas.", strict=False)
    seeds: int = option(5, "Seeds of each.", ge=1)
    first_seed: int = option(0, "The first seed.", flag="--seed", ge=0)
    train_length: int = option(8, "Longest input in training.", ge=1)
    test_lengths: tuple[int, ...] = option((), "Lengths with commas; empty: chosen by the task.", strict=False)
    test_count: int = option(256, "Sequences to score at each length.", ge=1)
    steps: int = option(2000, "Optimizer steps of each run.", ge=1)
    batch: int = option(64, "Sequences in a batch.", ge=1)
    lrs: tuple[Positive, ...] = option(
        (3e-3,), "Peak learning rate, or several with commas.", flag="--lr", min_length=1, strict=False
    )
    weight_decay: float = option(0.01, "AdamW's weight decay.", ge=0)
    schedule: Literal["linear", "cosine", "wsd", "constant"] = option(
        "linear", "After the warm-up: linear, cosine, wsd (stable, then a decay) or constant."
    )
    norm: Literal["rmsnorm", "layernorm", "dyt", "derf", "l2"] = option("rmsnorm", "The kind of every norm.")
    average_every: int | None = option(None, "Steps between two updates of EMA and BEMA (default: steps / 2000).", ge=1)
    average_eta: float = option(0.2, "BEMA's power: 0 is the largest correction.", ge=0)
    average_burn_in: int = option(0, "Steps before EMA and BEMA begin.", ge=0)
    dims: tuple[Width, ...] = option(
        (), "Width d, or several with commas; empty: the preset's.", flag="--dim", strict=False
    )
    head_dims: tuple[Width, ...] = option(
        (), "Width of a head's values (d_v) and keys, or several; empty: d / heads.", flag="--head-dim", strict=False
    )
    evaluate_at: tuple[Width, ...] = option((), "Steps at which to score on the way, with commas.", strict=False)
    depth: int | None = option(None, "Layers (default: the preset's).", ge=1)
    max_length: int | None = option(None, "Size of the table of learned positions (default: as needed).", ge=1)
    start: Start = "fair"

    @field_validator("schemes")
    @classmethod
    def _schemes(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_schemes(names)

    @field_validator("fixes")
    @classmethod
    def _fixes(cls, fixes: tuple[str, ...]) -> tuple[str, ...]:
        for fix in fixes:
            if canonical(fix) not in FIXES:
                raise ConfigError(unknown("fix", fix, FIXES))
        return tuple(dict.fromkeys(canonical(fix) for fix in fixes))

    @model_validator(mode="before")
    @classmethod
    def _lengths(cls, values: object) -> object:
        """Lengths that are not given follow from the task."""
        if not isinstance(values, dict) or values.get("test_lengths"):
            return values
        train_length = values.get("train_length", cls.model_fields["train_length"].default)
        if not isinstance(train_length, int):
            return values
        from normlab.tasks import Task, from_dict

        task = values.get("task") or default_task()
        ground = task if isinstance(task, Task) else task_of(task) if isinstance(task, str) else from_dict(task)
        return {**values, "test_lengths": list(default_lengths(ground, train_length))}

    @model_validator(mode="after")
    def _minimal(self) -> Self:
        if not self.test_lengths:
            raise ValueError("test_lengths: give at least one length")
        if self.preset == "minimal" and self.positions != ("nope",):
            raise ConfigError("the minimal preset has no positions by definition; take --preset two-layer for others")
        if self.preset == "minimal" and self.depth not in (None, 1):
            raise ConfigError(
                f"the minimal preset has one layer by definition, but {self.depth} were asked; take --preset two-layer"
            )
        return self


def default_lengths(task: AnyTask, train_length: int) -> tuple[int, ...]:
    """The training length, its half, and multiples up to what the task has."""
    longest = task.longest
    wanted = {max(train_length // 2, 1), *(train_length * k for k in (1, 2, 4))}
    if task.name == "set_complement" and longest is not None:
        wanted = {1, 2, train_length // 2 or 1, train_length, *(round(longest * k / 4) for k in (1, 2, 3)), longest}
    return tuple(sorted(n for n in wanted if n >= 1 and (longest is None or n <= longest)))
