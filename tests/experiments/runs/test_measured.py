import math

import pytest
import torch

from normlab.experiments.runs.measured import context_free, held_out
from normlab.tasks import task
from tests.experiments.tiny import tiny


def test_batches_sum_to_the_count_and_are_the_same_every_time():
    ground = task("tomita", number=4)
    torch.manual_seed(1)
    first = held_out(ground, 10, 4, 8)
    torch.manual_seed(2)
    again = held_out(ground, 10, 4, 8)
    assert [len(batch.tokens) for batch in first] == [4, 4, 2]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(first, again, strict=True))
    assert first[0].law is None
    assert held_out(task("set_complement", vocab=9, targets="exact"), 2, 2, 4)[0].law is not None


def test_a_uniform_target_has_the_entropy_of_its_alphabet():
    """Every next token of a set complement is equally frequent, and the context says much more."""
    config = tiny()
    job = task("set_complement", vocab=9)
    score = config.score.replace(sequences=512)
    found = context_free(config.replace(task=job, score=score, model=config.model.replace(vocab_size=9)))
    assert found == pytest.approx(math.log(9), abs=0.01)
    assert found <= math.log(9)


def test_data_that_are_gone_are_none(tmp_path):
    config = tiny()
    lost = config.replace(task=task("text", path=str(tmp_path / "none")), model=config.model.replace(vocab_size=256))
    assert context_free(lost) is None
