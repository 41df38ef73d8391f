import itertools
import math

import pytest
import torch

from normlab.errors import InputError
from normlab.tasks import task
from normlab.theory import complement_theorem as theory

F64 = torch.float64
V = 32


def prefixes(v: int, s: int, count: int = 64) -> torch.Tensor:
    return task("set_complement", vocab=v).sample(count, s, torch.Generator().manual_seed(s)).tokens


@pytest.mark.parametrize("v", [2, 3, 7, 32, 101])
def test_simplex(v):
    e = theory.simplex(v)
    assert e.shape == (v, v - 1)
    assert (e @ e.T - (torch.eye(v, dtype=F64) - 1 / v)).abs().max() < 1e-12


@pytest.mark.parametrize("s", [1, 2, 3, 8, 16, 24, 31])
def test_the_construction_is_balanced_with_gap_c_over_s(s):
    model, tokens = theory.TightSolution(V, c=50.0), prefixes(V, s)
    gap, imbalance = theory.balance(model.logits(tokens), tokens)
    assert imbalance.max() < 1e-12
    assert (gap - theory.gap(s, 50.0)).abs().max() < 1e-12
    tv = 0.5 * (model.logits(tokens).softmax(-1) - task("set_complement").law(tokens)[:, -1]).abs().sum(-1)
    assert (tv - theory.total_variation(s, V, 50.0 / s)).abs().max() < 1e-12


@pytest.mark.parametrize("s", [1, 2, 3, 8, 16, 24, 31])
@pytest.mark.parametrize("c", [0.3, 50.0])
def test_the_norm_law_does_not_depend_on_c(s, c):
    model, tokens = theory.TightSolution(V, c=c, gain=1.7), prefixes(V, s)
    gap, imbalance = theory.balance(model.logits(tokens), tokens)
    assert imbalance.max() < 1e-11
    assert (gap - theory.gap_with_norm(s, V, 1.7)).abs().max() < 1e-12 * 20


def test_the_norm_law_falls_to_half_and_rises_again():
    gaps = theory.gap_with_norm(torch.arange(1, V), V, 1.0)
    assert gaps.argmin() == V // 2 - 1
    assert torch.allclose(gaps, gaps.flip(0), atol=1e-12)  # symmetric in s and v - s


def test_calibrated_table():
    rows = {row.length: row for row in theory.calibrated(32, 0.01)}
    lengths = (8, 16, 24, 31)
    assert [round(rows[s].tv, 3) for s in lengths] == [0.010, 0.148, 0.483, 0.926]
    assert [round(rows[s].tv_with_norm, 3) for s in lengths] == [0.010, 0.046, 0.083, 0.005]


def test_rank_bound_is_tight():
    generator = torch.Generator().manual_seed(0)
    for v in (3, 8, 32):
        gaps = torch.rand(v, generator=generator, dtype=F64) + 0.5
        for shift in (torch.zeros(v, dtype=F64), torch.randn(v, generator=generator, dtype=F64)):
            assert theory.rank_needed(shift, gaps) >= v - 1
        # one shift attains v - 1: 1^T diag(gap)^-1 shift = 1
        assert theory.rank_needed(gaps / v, gaps) == v - 1
        m = theory.TightSolution(v, 3.0).logits(torch.arange(v)[:, None])
        assert torch.linalg.matrix_rank(m) == v - 1


@pytest.mark.parametrize("rank", [3, 6, 7])
def test_no_lower_rank_comes_nearer_than_the_bound(rank):
    """Gradient descent over factors of the given rank, up to row shifts, ends at the Eckart-Young bound, not below."""
    v, c = 8, 2.0
    generator = torch.Generator().manual_seed(rank)
    a = torch.randn(v, rank, generator=generator, dtype=F64, requires_grad=True)
    b = torch.randn(rank, v, generator=generator, dtype=F64, requires_grad=True)
    shift = torch.zeros(v, 1, dtype=F64, requires_grad=True)
    optimizer = torch.optim.LBFGS([a, b, shift], max_iter=400, tolerance_grad=1e-12, tolerance_change=1e-14)

    def miss():
        optimizer.zero_grad()
        loss = (a @ b + shift + c * torch.eye(v, dtype=F64)).square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(miss)
    # the shift itself is of rank one, so `rank` factors and a shift reach rank + 0 once rows are centred
    assert math.sqrt(float(miss().detach())) == pytest.approx(theory.least_imbalance(v, rank, c), abs=1e-5)


def test_balance_at_one_and_two_gives_every_length():
    """Unequal gaps: scores -log gap balance pairs, hence every set, with the harmonic gap."""
    v = 12
    generator = torch.Generator().manual_seed(3)
    gaps = torch.rand(v, generator=generator, dtype=F64) * 4 + 0.5
    shift = torch.randn(v, generator=generator, dtype=F64)
    m = shift[:, None] - torch.diag(gaps)
    for s in range(1, v):
        tokens = prefixes(v, s)
        a = theory.balanced_attention(gaps[tokens])
        logits = torch.einsum("bs,bsv->bv", a, m[tokens])
        gap, imbalance = theory.balance(logits, tokens)
        assert imbalance.max() < 1e-12
        assert (gap - theory.combined_gap(gaps[tokens])).abs().max() < 1e-12
    equal = torch.full((5,), 3.0, dtype=F64)
    assert abs(theory.combined_gap(equal) - 3.0 / 5) < 1e-15


def test_other_attention_is_not_balanced():
    gaps = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64)
    tokens = torch.tensor([[0, 1]])
    logits = 0.5 * (-torch.diag(gaps)[tokens]).sum(1)
    assert theory.balance(logits, tokens)[1].item() == pytest.approx(0.5)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_skip_path_loses_balance_at_three(ratio):
    model = theory.skip_counterexample(8, ratio)
    for s in (1, 2):
        tokens = torch.tensor(list(itertools.permutations(range(8), s)))
        assert theory.balance(model.logits(tokens), tokens)[1].max() < 1e-12
    for s, want in ((3, model.imbalance_at_3()),):
        tokens = torch.tensor(list(itertools.permutations(range(8), s)))
        imbalance = theory.balance(model.logits(tokens), tokens)[1]
        assert (imbalance - want).abs().max() < 1e-12
        assert want > 0.05


@pytest.mark.parametrize("c", [4.5, 12.5])
def test_skip_and_post_norm_repeat_the_last_token_beyond_c(c):
    for s in range(1, 24):
        tokens = prefixes(V, s, 16)
        best = theory.TightSolution(V, c, skip=True, gain=1.0).logits(tokens).argmax(-1)
        assert bool((best == tokens[:, -1]).all()) == theory.last_token_wins(s, c)


def test_legality_auc_cannot_see_dispersion():
    """Every absent token stays above every present one at s = 31, while the total variation is above 0.9."""
    tokens = prefixes(V, 31)
    logits = theory.TightSolution(V, theory.gap_for(0.01, 8, V) * 8).logits(tokens)
    law = task("set_complement").law(tokens)[:, -1]
    assert (logits[law > 0].min() > logits[law == 0].max()).item()
    assert (0.5 * (logits.softmax(-1) - law).abs().sum(-1)).min() > 0.9


def test_impossible_questions():
    with pytest.raises(InputError, match="vocabulary of 2 or more"):
        theory.simplex(1)
    with pytest.raises(InputError, match=r"between 0 and s/v = 0\.25"):
        theory.gap_for(0.5, 8, 32)
    with pytest.raises(InputError, match="between 0 and 1"):
        theory.skip_counterexample(8, 1.5)
