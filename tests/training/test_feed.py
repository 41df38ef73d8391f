import pytest
import torch

from normlab.tasks import task
from normlab.training.feed import Feed

V = 10


@pytest.mark.parametrize("options", [{}, {"replacement": True}, {"targets": "exact"}])
def test_drawing_ahead_changes_nothing_and_survives_a_checkpoint(options):
    ground = task("set_complement", vocab=V, **options)
    assert ground.rowwise == ("replacement" not in options)

    def feed():
        return Feed(ground, 3, 5, [torch.Generator().manual_seed(s) for s in range(2)])

    mine, alone = feed(), [torch.Generator().manual_seed(s) for s in range(2)]
    for step in range(70):
        batch = next(mine)
        for member, generator in enumerate(alone):
            want = ground.sample(3, 5, generator)
            assert torch.equal(batch.tokens[member], want.tokens)
            assert torch.equal(batch.targets[member], want.targets)
            assert want.law is None or torch.equal(batch.law[member], want.law)
        if step == 66:
            tensors, rest = mine.state()
            saved = {key: t.clone() for key, t in tensors.items()}, dict(rest)
    other = feed()
    other.load(*saved)
    for _ in range(3):
        again = next(other)
    assert torch.equal(again.tokens, batch.tokens)
