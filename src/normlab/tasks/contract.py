"""`check_task`: what every task must satisfy. Public through `normlab.testing`, so that others can check their own."""

from __future__ import annotations

import torch

from normlab.errors import ContractError
from normlab.tasks.base import IGNORE, Task


def check_task(task: Task, *, count: int = 64, length: int = 8, seed: int = 0) -> None:
    """Raise a `ContractError` that names the first broken promise."""

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def ensure(kept: bool, promise: str) -> None:
        if not kept:
            raise ContractError(f"the task {task.name!r} breaks its contract: {promise}")

    batch = task.sample(count, length, generator())
    again = task.sample(count, length, generator())
    ensure(batch.tokens.shape == batch.targets.shape == (count, length), "tokens and targets are [count, length]")
    ensure(batch.tokens.dtype == batch.targets.dtype == torch.int64, "tokens and targets are int64")
    ensure(
        torch.equal(batch.tokens, again.tokens) and torch.equal(batch.targets, again.targets),
        "one generator state gives one batch",
    )
    ensure(type(task).from_yaml(task.to_yaml()) == task, "the configuration survives YAML")
    if not task.exact:
        return
    law = task.law(batch.tokens)
    total = law.sum(-1)
    ensure(law.dtype == torch.float64 and law.shape == (count, length, task.vocab_size), "the law is float64 [b, t, v]")
    ensure(bool((law >= 0).all()), "no probability is negative")
    ensure(bool((((total - 1).abs() < 1e-12) | (total == 0)).all()), "a law sums to 1, or is zero where none exists")
    scored = batch.targets != IGNORE
    ensure(torch.equal(scored, total > 0), "exactly the prefixes that have a law are scored")
    picked = law.gather(-1, batch.targets.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    ensure(bool((picked[scored] > 0).all()), "every target is legal")
    ensure(torch.equal(task.legal(batch.tokens), law > 0), "legal means a positive probability")
    half = task.law(batch.tokens[:, : max(length // 2, 1)])
    ensure(torch.equal(half, law[:, : half.shape[1]]), "the law at a prefix does not look ahead")
