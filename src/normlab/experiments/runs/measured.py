"""The held-out data of a run, the same for every scheme, learning rate and seed of a comparison."""

from __future__ import annotations

import json
from functools import lru_cache

import torch

from normlab.errors import InputError
from normlab.experiments.measures import context_free_loss
from normlab.experiments.runs.config import RunConfig
from normlab.tasks import Batch, Task, from_dict

HELD_OUT_SEED = 271828


def held_out(task: Task, count: int, size: int, length: int) -> list[Batch]:
    """`count` sequences in batches of `size`."""
    generator = torch.Generator().manual_seed(HELD_OUT_SEED)
    exact = task.targets == "exact"
    left, batches = count, []
    while left > 0:
        batches.append(task.held_out().sample(min(size, left), length, generator, law=exact))
        left -= size
    return batches


def context_free(config: RunConfig) -> float | None:
    """What no model that ignores the context can beat on this run's held-out data; None where those are gone."""
    try:
        count, size = config.held_out.sequences, config.held_out_batch
        return _context_free(config.task.to_json(), count, size, config.train.length)
    except InputError:
        return None


@lru_cache(maxsize=64)
def _context_free(task: str, count: int, size: int, length: int) -> float:
    return context_free_loss(held_out(from_dict(json.loads(task)), count, size, length))
