import itertools
import re

import pytest
import torch
from scipy import stats

from normlab.errors import InputError
from normlab.tasks import DEAD, Automaton, task

COUNTS = {  # accepted strings of length 0..12
    1: [1] * 13,
    2: [1, 0] * 6 + [1],
    3: [1, 2, 3, 6, 10, 18, 32, 56, 100, 176, 312, 552, 976],
    4: [1, 2, 4, 7, 13, 24, 44, 81, 149, 274, 504, 927, 1705],
    5: [1, 0, 2, 0, 8, 0, 32, 0, 128, 0, 512, 0, 2048],
    6: [1, 0, 2, 2, 6, 10, 22, 42, 86, 170, 342, 682, 1366],
    7: [1, 2, 4, 8, 15, 26, 42, 64, 93, 130, 176, 232, 299],
}
STATES = {1: 1, 2: 2, 3: 4, 4: 3, 5: 4, 6: 3, 7: 4}


def _no_odd_ones_then_odd_zeros(word: str) -> bool:
    runs = [(symbol, len(list(run))) for symbol, run in itertools.groupby(word)]
    return not any(a[0] == "1" and a[1] % 2 and b[1] % 2 for a, b in itertools.pairwise(runs))


PREDICATES = {  # written from the definitions of the languages, without an automaton
    1: lambda w: "0" not in w,
    2: lambda w: re.fullmatch("(10)*", w) is not None,
    3: _no_odd_ones_then_odd_zeros,
    4: lambda w: "000" not in w,
    5: lambda w: w.count("0") % 2 == 0 and w.count("1") % 2 == 0,
    6: lambda w: (w.count("0") - w.count("1")) % 3 == 0,
    7: lambda w: re.fullmatch("0*1*0*1*", w) is not None,
}


@pytest.mark.parametrize("number", range(1, 8))
def test_tomita_equals_brute_force_to_length_12(number):
    automaton = task("tomita", number=number).automaton
    assert automaton.states == STATES[number]
    assert [row[0] for row in automaton.counts(12)] == COUNTS[number]
    for n in range(13):
        words = list(itertools.product((0, 1), repeat=n))
        want = torch.tensor([PREDICATES[number]("".join(map(str, w))) for w in words])
        last = automaton.run(torch.tensor(words).reshape(len(words), n))[:, -1]
        got = (last != DEAD) & automaton.accept[last.clamp_min(0)]
        assert torch.equal(got, want), f"length {n}"


@pytest.mark.parametrize("number", range(1, 8))
def test_tomita_legal_sets_equal_brute_force(number):
    """A next symbol is legal when some accepted string goes on so; three more symbols always suffice here."""
    language = task("tomita", number=number)
    accepts = PREDICATES[number]
    tails = ["".join(t) for n in range(4) for t in itertools.product("01", repeat=n)]
    for n in range(9):
        for word in map("".join, itertools.product("01", repeat=n)):
            if not any(accepts(word + tail) for tail in tails):
                continue
            want = [any(accepts(word + a + tail) for tail in tails) for a in "01"] + [accepts(word)]
            tokens = torch.tensor([[2, *map(int, word)]])
            assert language.legal(tokens)[0, -1].tolist() == want, word


@pytest.mark.parametrize(("pairs", "depth", "longest"), [(1, 2, 12), (2, 2, 7), (2, 3, 7), (3, 2, 5)])
def test_dyck_equals_a_stack_on_all_strings(pairs, depth, longest):
    language = task("dyck", pairs=pairs, depth=depth)
    assert language.automaton.states == sum(pairs**i for i in range(depth + 1))
    for n in range(longest + 1):
        words = torch.tensor(list(itertools.product(range(2 * pairs), repeat=n)), dtype=torch.int64)
        words = words.reshape((2 * pairs) ** n, n)
        law = language.law(torch.cat([torch.full((len(words), 1), 2 * pairs), words], 1))[:, -1]
        want = torch.tensor([_dyck_law(word, pairs, depth) for word in words.tolist()], dtype=torch.float64)
        assert torch.allclose(law, want, rtol=0, atol=1e-15), f"length {n}"


def test_dyck_counts_equal_an_enumeration_by_stack():
    def grow(stack, left):
        if left == 0:
            return int(not stack)
        opened = sum(grow((*stack, a), left - 1) for a in range(2)) if len(stack) < 3 else 0
        return opened + (grow(stack[:-1], left - 1) if stack else 0)

    counts = task("dyck", pairs=2, depth=3).automaton.counts(12)
    assert [row[0] for row in counts] == [grow((), n) for n in range(13)]
    assert counts[12][0] == 5696  # 89 paths of height <= 3, times 2^6 kinds


def _dyck_law(word, pairs, depth):
    stack = []
    for symbol in word:
        if symbol < pairs:
            stack.append(symbol)
        elif not stack or stack.pop() != symbol - pairs:
            return [0.0] * (2 * pairs + 1)
        if len(stack) > depth:
            return [0.0] * (2 * pairs + 1)
    law = [0.0] * (2 * pairs + 1)
    if len(stack) < depth:
        law[:pairs] = [0.5 / pairs] * pairs
    if stack:
        law[pairs + stack[-1]] = 1.0 if len(stack) == depth else 0.5
    else:
        law[-1] = 0.5
    return law


@pytest.mark.parametrize(
    ("name", "options", "length"),
    [("tomita", {"number": 3}, 8), ("tomita", {"number": 5}, 6), ("tomita", {"number": 7}, 9), ("dyck", {}, 6)],
)
def test_strings_of_a_length_are_uniform(name, options, length):
    automaton = task(name, **options).automaton
    total = automaton.counts(length)[length][0]
    draws = automaton.sample(200 * total, length, torch.Generator().manual_seed(1))
    unique, counts = draws.unique(dim=0, return_counts=True)
    assert len(unique) == total
    assert all(automaton.accepts(w) for w in unique.tolist())
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


@pytest.mark.parametrize(("name", "options"), [("tomita", {"number": 3}), ("dyck", {"pairs": 2, "depth": 2})])
def test_strings_of_mixed_lengths_are_uniform_in_each(name, options):
    automaton = task(name, **options).automaton
    wanted = {n: automaton.counts(n)[n][0] for n in (0, 2, 4, 6)}  # 0: no symbol at all
    lengths = torch.cat([torch.full((200 * total,), n) for n, total in wanted.items()])
    lengths = lengths[torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0))]
    words = automaton.sample_each(lengths, torch.Generator().manual_seed(1))
    assert torch.equal((words >= 0).sum(1), lengths)
    for n, total in [*wanted.items()][1:]:
        unique, counts = words[lengths == n][:, :n].unique(dim=0, return_counts=True)
        assert len(unique) == total
        assert all(automaton.accepts(w) for w in unique.tolist())
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_weighted_strings_follow_the_law():
    """Given the length, a string has the probability of its path under the law."""
    language = task("dyck", pairs=2, depth=2)
    draws = language.automaton.sample(40_000, 6, torch.Generator().manual_seed(2), weights=language.table)
    unique, counts = draws.unique(dim=0, return_counts=True)
    tokens = torch.cat([torch.full((len(unique), 1), language.end), unique], 1)
    after = torch.cat([unique, torch.full((len(unique), 1), language.end)], 1)
    weight = language.law(tokens).gather(-1, after.unsqueeze(-1)).squeeze(-1).prod(-1)
    assert len(unique) == language.automaton.counts(6)[6][0]
    assert weight.unique().numel() > 1  # else this would be the uniform test again
    expected = (weight / weight.sum() * counts.sum()).numpy()
    assert stats.chisquare(counts.numpy(), expected).pvalue > 1e-3


def test_counts_of_long_strings_stay_exact_and_sampling_does_not_overflow():
    automaton = task("tomita", number=4).automaton
    assert automaton.counts(1000)[1000][0] > 10**250
    words = automaton.sample(4, 2000, torch.Generator().manual_seed(0))
    assert all(automaton.accepts(w) for w in words.tolist())


def test_a_length_without_strings_names_the_nearest():
    with pytest.raises(InputError, match=r"length 5; the nearest length that has one is [46]"):
        task("tomita", number=5).automaton.sample(1, 5, torch.Generator())


def test_minimisation_merges_and_trims():
    """Strings over {a, b} that end in b, from a wasteful machine that remembers three symbols and can get stuck."""
    machine = Automaton.explore("ab", "", lambda q, a: (q + "ab"[a])[-3:], lambda q: q.endswith("b"))
    assert machine.states == 2
    stuck = Automaton.explore("ab", 0, lambda q, a: {0: 1, 1: 2}.get(q, q) if a else q, lambda q: q == 1)
    assert stuck.states == 2
    assert stuck.step[1].tolist() == [1, DEAD]
    with pytest.raises(InputError, match="accepts no string"):
        Automaton.explore("ab", 0, lambda q, a: q, lambda q: False)
