import random

import torch
from scipy import stats

from normlab.tasks import MaxRetrieval, task


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_max_retrieval_equals_a_plain_loop():
    ground = task("max_retrieval", classes=4)
    generator = random.Random(0)
    for _ in range(50):
        levels = [generator.randrange(6) for _ in range(12)]  # few levels: many ties
        classes = [generator.randrange(4) for _ in range(12)]
        tokens = torch.tensor([[p * 4 + c for p, c in zip(levels, classes, strict=True)]])
        law = ground.law(tokens)[0]
        for t in range(12):
            best = max(range(t + 1), key=lambda i: (levels[i], -i))
            assert law[t].argmax() == classes[best]
            assert law[t].sum() == 1


def test_max_retrieval_embedding_is_affine_in_the_priority():
    ground = MaxRetrieval()
    embed = ground.embedding(7)
    low, high = torch.tensor([[3]]), torch.tensor([[(ground.levels - 1) * 10 + 3]])
    moved = embed(high) - embed(low)
    assert torch.allclose(moved[0, 0], embed.weight[10], atol=1e-5)
    assert torch.allclose(embed(low)[0, 0], embed.weight[3], atol=1e-5)
    items = ground.sample(1000, 20, rng()).tokens
    priority = (items // 10).double() / ground.levels
    assert stats.kstest(priority.flatten().numpy(), "uniform").pvalue > 1e-3
