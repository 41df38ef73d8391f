import itertools
import math

import pytest
import torch
from scipy import stats

from normlab.tasks import task


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("replacement", [False, True])
def test_set_complement_law_by_hand(replacement):
    v = 5
    ground = task("set_complement", vocab=v, replacement=replacement)
    space = itertools.product(range(v), repeat=4) if replacement else itertools.permutations(range(v), 4)
    words = torch.tensor(list(space))
    law = ground.law(words)
    for word, rows in zip(words.tolist(), law.tolist(), strict=True):
        for t, row in enumerate(rows):
            left = set(range(v)) - set(word[: t + 1])
            assert row == pytest.approx([1 / len(left) if j in left else 0.0 for j in range(v)], abs=1e-15)


def test_set_complement_inputs_are_uniform_permutations():
    batch = task("set_complement", vocab=5).sample(48_000, 4, rng())
    whole = torch.cat([batch.tokens, batch.targets[:, -1:]], 1)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    unique, counts = whole.unique(dim=0, return_counts=True)
    assert len(unique) == math.factorial(5)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
