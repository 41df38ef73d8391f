"""A run of normlab's own as a model: config.yaml and the last good checkpoint."""

from __future__ import annotations

from pathlib import Path

from normlab.config import load_yaml
from normlab.errors import InputError, NormlabError
from normlab.files import LIMITS, read_text
from normlab.model import Transformer, TransformerConfig
from normlab.probes.inputs.hub import Loaded, OwnText
from normlab.tasks import Text
from normlab.training import checkpoint

MOST = 1 << 20  # tokens of a run's own text
ENOUGH = 2048  # fewer tokens are no sample
SHORTEST = 8  # tokens: in shorter windows there is little to measure


def is_run(source: str) -> bool:
    return (Path(source) / "config.yaml").is_file() and (Path(source) / "checkpoint").is_dir()


def load_run(source: str) -> Loaded:
    """The model of a run folder. Its configuration is config.yaml itself, or the section `model` of it."""
    folder = Path(source)
    text = read_text(folder / "config.yaml", what="the configuration", most=LIMITS.yaml_bytes)
    values = load_yaml(text, source=str(folder / "config.yaml"))
    section = values.get("model", values) if isinstance(values, dict) else None
    if not isinstance(section, dict):
        raise InputError(f"{str(folder / 'config.yaml')!r} has no section 'model' that describes a Transformer")
    if isinstance(architecture := section.get("architecture"), dict):
        raise InputError(
            f"{source!r} is a run of the backbone {architecture.get('model_type')}, not of a Transformer of normlab's; build "
            "it with RunConfig.from_file(...).build() and call nl.diagnose(model.model, batches)"
        )
    found = checkpoint.latest(folder / "checkpoint")
    if found is None:
        raise InputError(f"{str(folder / 'checkpoint')!r} holds no readable checkpoint")
    model = Transformer(TransformerConfig.from_dict(section))
    try:
        model.load_state_dict(found.group("model"))
    except RuntimeError as error:
        raise InputError(
            f"the checkpoint in {source!r} does not fit its config.yaml: {str(error).splitlines()[0]}"
        ) from None
    task, notes = _text(values.get("task")), [f"normlab run, step {found.step}"]
    tokenizer = None if task is None else TextTokenizer(task)
    return Loaded(
        folder.name,
        model.eval(),
        tokenizer,
        notes,
        window=_length(values.get("train")),
        own_text=lambda: None if task is None else _held_out(task, notes),
    )


def _length(train: object) -> int | None:
    length = train.get("length") if isinstance(train, dict) else None
    return length if isinstance(length, int) and length >= SHORTEST else None


def _text(task: object) -> Text | None:
    return Text.from_dict(task) if isinstance(task, dict) and task.get("task") == "text" else None


def _held_out(task: Text, notes: list[str]) -> OwnText | None:
    """What training did not see of the run's own text. Of another kind of text a sound model does not know much."""
    try:
        ids = task.held_out().stream[:MOST]
    except NormlabError as error:
        notes.append(f"its own text cannot be read ({error}); another one was taken")
        return None
    if len(ids) < ENOUGH:
        notes.append(f"{len(ids)} tokens of its own text were held out, fewer than {ENOUGH}; another text was taken")
        return None
    return OwnText(ids, "what was held out of the run's own text")


class TextTokenizer:
    """The tokens of a run on text, called as a Hugging Face tokenizer is. It has no special tokens."""

    def __init__(self, task: Text) -> None:
        self.task = task

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": self.task.encode(text).tolist()}
