import itertools
import math
import random

import pytest
import torch
from scipy import stats

from normlab.errors import ConfigError, ContractError, InputError, UnsupportedError
from normlab.tasks import IGNORE, Batch, MaxRetrieval, SetComplement, from_dict, task
from normlab.tasks.contract import check_task

ALL = [
    ("set_complement", {"vocab": 12}),
    ("set_complement", {"vocab": 6, "replacement": True}),
    ("set_complement", {"vocab": 12, "targets": "exact"}),
    ("max_retrieval", {}),
    ("max_retrieval", {"classes": 3}),
    ("dyck", {}),
    ("dyck", {"pairs": 3, "depth": 2, "source": "strings"}),
    *[("tomita", {"number": n}) for n in range(1, 8)],
    ("tomita", {"number": 6, "source": "strings"}),
    ("text", {}),
]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("name", "options"), ALL)
def test_contract(name, options):
    check_task(task(name, **options))


def test_the_contract_catches_a_wrong_target():
    class Wrong(SetComplement):
        def sample(self, *args, **kwargs) -> Batch:
            batch = super().sample(*args, **kwargs)
            return Batch(batch.tokens, batch.tokens, batch.law)

    with pytest.raises(ContractError, match="every target is legal"):
        check_task(Wrong(vocab=12))


def test_the_contract_catches_a_law_that_looks_ahead():
    class Ahead(SetComplement):
        def law(self, tokens):
            return super().law(tokens)[:, -1:].expand(-1, tokens.shape[1], -1)

    with pytest.raises(ContractError):
        check_task(Ahead(vocab=12))


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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("set_complement", {"vocab": 6}),
        ("set_complement", {"vocab": 4, "replacement": True}),
        ("dyck", {}),
        ("tomita", {"number": 3}),
        ("tomita", {"number": 5, "source": "strings"}),
    ],
)
def test_targets_are_draws_from_the_law(name, options):
    """Prefixes are grouped by their law; within a group the targets follow it (chi-square)."""
    batch = task(name, **options).sample(6000, 5, rng(3), law=True)
    scored = batch.targets != IGNORE
    laws, group = batch.law[scored].unique(dim=0, return_inverse=True)
    checked = 0
    for i, law in enumerate(laws):
        seen = torch.bincount(batch.targets[scored][group == i], minlength=len(law)).double()
        possible = law > 0
        assert seen[~possible].sum() == 0
        if possible.sum() > 1 and seen.sum() * law[possible].min() > 5:
            checked += 1
            assert stats.chisquare(seen[possible].numpy(), (law[possible] * seen.sum()).numpy()).pvalue > 1e-4
    assert checked >= 1


def test_process_beginnings_do_not_depend_on_the_length():
    language = task("dyck", pairs=1, depth=3)
    short, long = language.sample(20_000, 5, rng(1)).tokens, language.sample(20_000, 40, rng(2)).tokens[:, :5]
    words, where = torch.cat([short, long]).unique(dim=0, return_inverse=True)
    table = [torch.bincount(where[:20_000], minlength=len(words)), torch.bincount(where[20_000:], minlength=len(words))]
    assert stats.chi2_contingency(torch.stack(table).numpy()).pvalue > 1e-3


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


@pytest.mark.parametrize(("name", "nearest"), [("set-complment", "set_complement"), ("dick", "dyck")])
def test_unknown_task(name, nearest):
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        task(name)


def test_bad_shapes_are_one_sentence():
    with pytest.raises(InputError, match=r"at most 31 distinct tokens .* a length of 32"):
        task("set_complement", vocab=32).sample(4, 32, rng())
    with pytest.raises(InputError, match="a batch of 0"):
        task("dyck").sample(0, 4, rng())
    with pytest.raises(InputError, match="lengths start at 1"):
        task("dyck").sample(4, 0, rng())
    with pytest.raises(ConfigError, match="did you mean 'number'"):
        task("tomita", nmber=3)
    with pytest.raises(ConfigError, match="number"):
        task("tomita", number=8)
    with pytest.raises(ConfigError, match="more than the 50000"):
        task("dyck", pairs=100, depth=4).sample(1, 4, rng())
    assert from_dict(task("dyck", pairs=3).to_dict()) == task("dyck", pairs=3)


class TestText:
    def test_shipped_sample(self):
        text = task("text")
        assert len(text.stream) > 4_000_000
        assert text.stream.max() < 128  # ASCII
        batch = text.sample(4, 32, rng())
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        assert len(text.held_out().stream) == pytest.approx(len(text.stream) / 9, rel=1e-3)
        with pytest.raises(UnsupportedError, match="no known next-token law"):
            text.law(batch.tokens)

    def test_windows_are_windows_of_the_file(self, tmp_path):
        path = tmp_path / "t.txt"
        path.write_text("The café is open. " * 40, encoding="utf-8")
        text = task("text", path=str(path))
        raw = path.read_bytes()
        for row in text.sample(20, 16, rng()).tokens.tolist():
            assert bytes(row) in raw

    def test_byte_pairs_round_trip_and_shorten(self, tmp_path):
        path = tmp_path / "t.txt"
        path.write_text("the cat sat on the mat, né? " * 200, encoding="utf-8")
        pairs = task("text", path=str(path), tokens="bpe", bpe_size=300)
        assert pairs.stream.max() < 300
        assert pairs.decode(pairs.stream) == path.read_text(encoding="utf-8")[: len(pairs.decode(pairs.stream))]
        assert len(pairs.stream) < 0.5 * len(task("text", path=str(path)).stream)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "is empty"),
            (b"  \n", "is empty"),
            (b"\x89PNG\0\0", "NUL bytes"),
            (b"caf\xe9 au lait", "not UTF-8 text .byte 3"),
        ],
    )
    def test_not_text(self, tmp_path, content, says):
        path = tmp_path / "bad"
        path.write_bytes(content)
        with pytest.raises(InputError, match=says):
            task("text", path=str(path)).sample(1, 2, rng())

    def test_missing_and_too_short(self, tmp_path):
        with pytest.raises(InputError, match="cannot read the text file"):
            task("text", path=str(tmp_path / "none")).sample(1, 2, rng())
        path = tmp_path / "short.txt"
        path.write_text("a few words")
        with pytest.raises(InputError, match="too few for windows of 64"):
            task("text", path=str(path)).sample(1, 64, rng())
