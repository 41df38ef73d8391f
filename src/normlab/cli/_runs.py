"""A run of normlab's own as a model: config.yaml and the last good checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normlab.probes.loading import Loaded


def is_run(source: str) -> bool:
    return (Path(source) / "config.yaml").is_file() and (Path(source) / "checkpoint").is_dir()


def load_run(source: str) -> Loaded:
    """The model of a run folder. Its configuration is config.yaml itself, or the section `model` of it."""
    from normlab.config import load_yaml
    from normlab.errors import InputError
    from normlab.model import Transformer, TransformerConfig
    from normlab.probes.loading import Loaded
    from normlab.training import checkpoint

    folder = Path(source)
    values = load_yaml((folder / "config.yaml").read_text(encoding="utf-8"), source=str(folder / "config.yaml"))
    section = values.get("model", values) if isinstance(values, dict) else None
    if not isinstance(section, dict):
        raise InputError(f"{str(folder / 'config.yaml')!r} has no section 'model' that describes a Transformer")
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
    return Loaded(folder.name, model.eval(), None, [f"normlab run, step {found.step}"])
