import torch
from scipy import stats

from normlab.tasks import IGNORE, task


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_process_beginnings_do_not_depend_on_the_length():
    language = task("dyck", pairs=1, depth=3)
    short, long = language.sample(20_000, 5, rng(1)).tokens, language.sample(20_000, 40, rng(2)).tokens[:, :5]
    words, where = torch.cat([short, long]).unique(dim=0, return_inverse=True)
    table = [torch.bincount(where[:20_000], minlength=len(words)), torch.bincount(where[20_000:], minlength=len(words))]
    assert stats.chi2_contingency(torch.stack(table).numpy()).pvalue > 1e-3


def test_strings_are_complete_and_lengths_uniform():
    language = task("tomita", number=5, source="strings")
    batch = language.sample(8000, 9, rng())
    ends = (batch.tokens[:, 1:] == language.end).sum(-1)
    lengths = 8 - ends
    assert set(lengths.tolist()) == {0, 2, 4, 6, 8}
    assert stats.chisquare(torch.bincount(lengths)[::2].numpy()).pvalue > 1e-3
    for row, n in zip(batch.tokens[:200].tolist(), lengths[:200].tolist(), strict=True):
        assert language.automaton.accepts(row[1 : n + 1])
    assert torch.equal((batch.targets != IGNORE).sum(-1), lengths + 1)
