"""`RunConfig`: everything that decides a run. `config.yaml` in its folder is this, whole.

Older formats are read as well: cells of a comparison (`measure`), runs of a length experiment (`test_lengths`), and format
2, which knew one start, the authors'. A file that names no format was written by hand and has today's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import (
    Field,
    SerializeAsAny,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from normlab.config import Config
from normlab.errors import ConfigError
from normlab.experiments.request import AnyTask, shipped_text
from normlab.experiments.runs.score import ByLength, HeldOut
from normlab.model import Transformer, TransformerConfig
from normlab.schemes.recipes import MODEL_FIELDS, TRAIN_FIELDS
from normlab.surgery.backbone.config import BackboneConfig
from normlab.surgery.backbone.model import Backbone
from normlab.tasks import Task
from normlab.training import TrainConfig

FORMAT = 3
START_OF_OLDER: dict[str, object] = {"start": "authors", "start_factor": 1.0}
"""What a model of format 1 or 2 does not say: there was one start."""
OLD_START: dict[str, object] = {**START_OF_OLDER, "init_std": 0.02, "embedding_scale": 1.0}
"""Fields of a `TransformerConfig` that begins as all did until 2026-11-19, where no recipe said otherwise."""
if TYPE_CHECKING:
    AnyModel = TransformerConfig | BackboneConfig
else:

    def _either(value: object, ours: ValidatorFunctionWrapHandler) -> object:
        """A model of ours, or somebody's architecture, which says so. Not a union: its faults would be named twice."""
        if isinstance(value, BackboneConfig):
            return value
        return BackboneConfig.from_dict(value) if isinstance(value, dict) and "architecture" in value else ours(value)

    AnyModel = Annotated[SerializeAsAny[TransformerConfig], WrapValidator(_either)]


class RunConfig(Config):
    """One run: model, task, training, and how it is judged."""

    what: ClassVar[str] = "run"

    format: int = FORMAT
    model: AnyModel
    task: AnyTask = Field(default_factory=shipped_text)
    train: TrainConfig = TrainConfig()
    score: HeldOut | ByLength = Field(default=HeldOut(), discriminator="kind")
    recipe: Literal["fair", "shared", "authors"] = Field(
        default="shared",
        description="authors: each scheme with the embedding, q-k norm, initialisation and decay of its own; fair: one start "
        "for all (`shared` shares the embedding alone)",
    )
    recipe_of: str | None = Field(
        default=None, description="where each takes its authors' recipe: the name of the one that this run takes"
    )

    @model_validator(mode="before")
    @classmethod
    def _older(cls, values: object) -> object:
        return upgraded(values) if isinstance(values, dict) else values

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: int) -> int:
        if value != FORMAT:
            raise ValueError(f"the run has the format {value}, and this normlab writes {FORMAT}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if isinstance(self.model, BackboneConfig):
            self._backbone_fits(self.model)
        elif self.model.tie_embeddings and self.task.embedding(self.model.dim) is not None:
            raise ValueError(
                f"model.tie_embeddings: {self.task.name!r} brings its own embedding, so this must be false"
            )
        if self.model.vocab_size < self.task.vocab_size:
            raise ValueError(
                f"model.vocab_size: {self.model.vocab_size} is less than the {self.task.vocab_size} tokens of the task"
            )
        if isinstance(self.score, ByLength):
            self._lengths_fit(self.score)
        return self

    def _backbone_fits(self, model: BackboneConfig) -> None:
        if self.task.embedding(1) is not None:
            raise ValueError(
                f"task: {self.task.name!r} brings its own embedding, and a backbone ({model.name}) has one"
            )
        if isinstance(self.score, ByLength):
            raise ValueError(f"score.kind: a backbone ({model.name}) is judged 'held_out', not by length")

    def _lengths_fit(self, score: ByLength) -> None:
        self.task.check(self.train.batch, self.train.length)
        for length in score.lengths:
            self.scored.held_out().check(score.count, length)
        if self.scored.vocab_size != self.task.vocab_size:
            raise ValueError(
                f"score.task: {self.scored.vocab_size} tokens are not the {self.task.vocab_size} of the training task"
            )
        longest = max(*score.lengths, self.train.length)
        if self.model.longest is not None and longest > self.model.longest:
            raise ValueError(
                f"score.lengths: {longest} is beyond the table of {self.model.longest} learned positions; shorten it, "
                "raise model.max_length, or take rope, nope or sinusoidal positions"
            )
        if self.model.vocab_size != self.task.vocab_size:
            raise ValueError(
                f"model.vocab_size: {self.model.vocab_size} is not the {self.task.vocab_size} of the task {self.task.name!r}"
            )

    @property
    def scored(self) -> Task:
        """What a run by length is scored on."""
        return self.score.task if isinstance(self.score, ByLength) and self.score.task is not None else self.task

    @property
    def held_out(self) -> HeldOut:
        if not isinstance(self.score, HeldOut):
            raise ConfigError(f"score.kind: this run is scored {self.score.kind!r}, and 'held_out' is needed here")
        return self.score

    def check(self) -> None:
        """Draw a sequence of each kind, and raise if there is none, or if it does not fit the model."""
        length, longest = self.train.length, self.model.longest
        self.task.sample(1, length, torch.Generator())
        self.task.held_out().sample(1, length, torch.Generator(), law=self.task.targets == "exact")
        if longest is not None and length > longest:
            raise ConfigError(
                f"train.length: {length} is beyond the {longest} learned positions; shorten it, or raise model.max_length"
            )

    # -- when to look ------------------------------------------------------------------------------------------------
    def validation_steps(self) -> set[int]:
        """Evenly spread, and where a final decay begins: the gap between schemes is followed through it."""
        steps, count = self.train.steps, self.held_out.validations
        found = {round(steps * k / count) for k in range(1, count + 1)}
        if self.train.schedule.kind == "wsd":
            found.add(self.decay_start)
        return {step for step in found if step > 0}

    def layer_steps(self) -> set[int]:
        return {round(self.train.steps * share) for share in self.held_out.layers}

    @property
    def decay_start(self) -> int:
        schedule, steps = self.train.schedule, self.train.steps
        return max(schedule.warmup, round(steps * (1 - schedule.decay))) if schedule.kind == "wsd" else schedule.warmup

    @property
    def held_out_batch(self) -> int:
        return max(self.train.batch, self.held_out.layer_sequences)

    # -- how much, and what is shared --------------------------------------------------------------------------------
    @property
    def tokens_a_step(self) -> int:
        return self.train.batch * self.train.length * self.train.accumulate

    @property
    def work(self) -> float:
        """Tokens x layers: what a run costs, up to a factor that the runs of a sweep share but for the scheme."""
        return float(self.train.steps * self.tokens_a_step * self.model.depth)

    def setting(self) -> str:
        """What the runs that are compared with each other share: all but the scheme, the learning rate and the seed; and
        all but what the authors' recipes set, where those are taken."""
        return setting_of(self.to_dict())

    @property
    def ours(self) -> TransformerConfig:
        """The model, where only one of ours will do."""
        if isinstance(self.model, BackboneConfig):
            raise ConfigError(
                f"model: this is a run of the backbone {self.model.name}, and a Transformer is needed here"
            )
        return self.model

    def build_ours(self, *, device: str = "cpu") -> Transformer:
        found = self.build(device=device)
        assert isinstance(found, Transformer), self.ours
        return found

    def build(self, *, device: str = "cpu") -> Transformer | Backbone:
        """The model as it is before the first step; the global random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            return self.build_seeded(device=device)

    def build_seeded(self, *, device: str = "cpu") -> Transformer | Backbone:
        """The same, and training goes on with the random state behind it. Same seed: the same branches where the init
        agrees."""
        torch.manual_seed(self.train.seed)
        if isinstance(self.model, BackboneConfig):
            return Backbone(self.model).to(device)
        model = Transformer(self.model)
        own = self.task.embedding(self.model.dim)
        if own is not None:
            model.replace_embedding_(own)
        return model.to(device)


def setting_of(values: Mapping[str, object]) -> str:
    """`RunConfig.setting` of plain values, of any format that is read."""
    kept = upgraded(values)
    own = kept.get("recipe") == "authors"
    if kept.pop("recipe_of", None) is not None:
        kept["recipe_of"] = "each its own"  # older runs with recipes began otherwise
    model = _without(kept["model"], "scheme", *(MODEL_FIELDS if own else ()))
    train = _without(kept["train"], "lr", "seed", *(TRAIN_FIELDS if own else ()))
    return json.dumps({**kept, "model": model, "train": train}, sort_keys=True)


def _without(section: object, *keys: str) -> dict[str, object]:
    if not isinstance(section, dict):
        raise TypeError(f"a section was expected, but got {section!r}")
    return {key: value for key, value in section.items() if key not in keys}


def upgraded(values: Mapping[str, object]) -> dict[str, object]:
    """Plain values of an older format in today's words."""
    found = dict(values)
    older = found.get("format") in (1, 2) or bool({"measure", "test_lengths"} & set(found))
    if "measure" in found and "score" not in found:
        measure = found.pop("measure")
        found["score"] = {"kind": "held_out", **measure} if isinstance(measure, dict) else measure
    if "test_lengths" in found and "score" not in found:
        score = {"lengths": found.pop("test_lengths"), "count": found.pop("test_count", 256)}
        found["score"] = {"kind": "by_length", **score, "task": found.pop("test_task", None)}
    if older:
        found["format"] = FORMAT
        if isinstance(model := found.get("model"), dict) and "architecture" not in model:
            found["model"] = {**model, **START_OF_OLDER, **{k: model[k] for k in START_OF_OLDER if k in model}}
    return found
