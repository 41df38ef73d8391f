"""Run everything on one model: identity check, streaming statistics, attention, gradients, causal skips, verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normlab.errors import InputError
from normlab.probes.clock import Clock, Progress
from normlab.probes.diagnosis import Diagnosis
from normlab.probes.examination import Examination
from normlab.probes.inputs import batches as parts
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.inputs.sources import Material, Prepared, open_source, prepare
from normlab.probes.trace.roles import LayerRoles
from normlab.probes.trace.wrappers import is_compiled, unwrapped


def diagnose(
    model: nn.Module | str | Path,
    batches: Any = None,
    *,
    name: str | None = None,
    roles: LayerRoles | None = None,
    options: DiagnoseOptions | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> Diagnosis:
    """Diagnose a live model on batches: token ids [batch, tokens], dicts of keyword arguments, or tuples.

    >>> nl.diagnose(model, [tokens]).to_html("report.html")
    >>> nl.diagnose("my-checkpoint")  # a folder, an id, a .gguf file, package:NAME; on its own text (a run) or ours

    `changes` are fields of `DiagnoseOptions` (loss=, lengths=, skips=False, ...), `roles` describes a layer that the
    table does not know, `progress(stage, done, total)` is told how far it is. The model is put in eval mode for the
    time of the call; its weights, gradients and mode are left as they were.
    """
    chosen = replace(options or DiagnoseOptions(), **changes)
    if isinstance(model, (str, Path)):
        if batches is None:
            prepared = prepare(str(model), Material(), chosen)
            return diagnose_prepared(prepared, name=name, roles=roles, progress=progress)
        loaded = open_source(str(model), Material())
        model, name = loaded.model, name or loaded.name
    if not isinstance(model, nn.Module):
        raise InputError(f"a model or the name of one was expected, and {type(model).__name__} was given")
    if batches is None:
        raise InputError("a live model needs batches: nl.diagnose(model, [token_ids]); only a name needs none")
    model = unwrapped(model)
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise InputError(
            "the model was made inside of torch.inference_mode, where weights can have no gradients; make or load it "
            "outside, and diagnose it there or inside"
        )
    with torch.inference_mode(False), in_eval_mode(model):
        clock = Clock(progress, budget=chosen.max_seconds)
        examination = Examination(model, parts.as_batches(batches, model), chosen, clock)
        return examination.run_as_stored(name or type(model).__name__, roles)


def diagnose_prepared(
    prepared: Prepared, *, name: str | None = None, roles: LayerRoles | None = None, progress: Progress | None = None
) -> Diagnosis:
    """The same for what `inputs.sources.prepare` made of a name."""
    found = diagnose(
        prepared.model, prepared.batches, name=name or prepared.name, roles=roles, options=prepared.options,
        progress=progress,
    )  # fmt: skip
    how = replace(found.how, text=prepared.text, images=prepared.images)
    return replace(found, notes=(*found.notes, *prepared.notes), how=how)


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode and no key-value cache, for the time of the block."""
    modes = {module: module.training for module in model.modules()}
    compiled = is_compiled(model)
    if compiled:
        torch.compiler.set_stance("force_eager")  # compiled code does not see hooks that come later
    config = getattr(model, "config", None)
    cached = getattr(config, "use_cache", None)
    model.eval()
    if cached:
        config.use_cache = False  # type: ignore[union-attr]
    try:
        yield
    finally:
        if compiled:
            torch.compiler.set_stance("default")
        for module, mode in modes.items():
            module.training = mode
        if cached:
            config.use_cache = cached  # type: ignore[union-attr]
