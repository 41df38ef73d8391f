"""Which tokens are hidden, how, and that nothing else is scored."""

import pytest
import torch

from normlab.tasks import IGNORE, MaskedText, Text


def sampled(count=200, length=64, **options):
    task = MaskedText(**options)
    return task, task.sample(count, length, torch.Generator().manual_seed(0))


def test_shares_of_bert():
    task, batch = sampled()
    chosen = batch.targets != IGNORE
    assert float(chosen.float().mean()) == pytest.approx(0.15, abs=0.01)
    masked = batch.tokens == task.mask
    assert bool((chosen | ~masked).all())
    assert float(masked[chosen].float().mean()) == pytest.approx(0.8, abs=0.02)
    kept = batch.tokens[chosen] == batch.targets[chosen]
    assert float(kept.float().mean()) == pytest.approx(0.1, abs=0.02)


def test_the_window_comes_out_again():
    """What is scored holds the truth, and the rest is the text as it is."""
    task, batch = sampled(count=8)
    whole = Text().sample(8, 64, torch.Generator().manual_seed(0)).tokens
    chosen = batch.targets != IGNORE
    assert torch.equal(torch.where(chosen, batch.targets, batch.tokens), whole)
    assert task.vocab_size == 257


def test_held_out_windows_are_others():
    task, batch = sampled(count=4)
    other = task.held_out().sample(4, 64, torch.Generator().manual_seed(0))
    assert not torch.equal(batch.tokens, other.tokens)
    assert task.held_out().text.split == "test"


def test_a_share_of_all_is_refused():
    with pytest.raises(Exception, match="share"):
        MaskedText(share=1.0)
