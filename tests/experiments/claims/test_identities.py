"""What the ledger calls true by construction is stated here, and each statement can fail."""

import pytest
import torch

from normlab.experiments.claims.criteria import Construction
from normlab.experiments.claims.ledger import ledger
from normlab.experiments.claims.measured.start import averaging_theory, identities
from normlab.experiments.claims.measured.start.initialisation import small
from normlab.theory.mean_field import MeanFieldSetting, backprop_forms


def test_every_construction_names_a_test_of_this_file():
    for claim in ledger().values():
        for leaf in claim.criterion.leaves():
            if isinstance(leaf, Construction):
                path, _, name = leaf.test.partition("::")
                assert path == "tests/experiments/claims/test_identities.py"
                assert callable(globals().get(name)), f"{claim.id} names {name}"


def test_standard_residual_is_a_plain_sum():
    assert identities.plain_sum(5) < 1e-12
    mixing = small("dense_former", 0).depth_mixing(torch.zeros(1, 4, dtype=torch.long))
    assert mixing.shape[-1] == 9, "a mixing matrix has a column for the embedding and each branch"


def test_depth_attention_is_convex(monkeypatch):
    assert identities.convexity(5) < 1e-12
    monkeypatch.setattr(identities, "small", lambda scheme, seed: small("attn_res(mixing=sigmoid)", seed))
    assert identities.convexity(5) > 1e-3, "sigmoid weights do not sum to 1"


def test_hyper_connections_are_a_recurrence():
    assert identities.recurrence(5) < 1e-9


def test_the_final_norm_is_one_factor_a_token(monkeypatch):
    assert identities.final_norm_factor(5) < 1e-12
    monkeypatch.setattr(identities, "small", lambda scheme, seed: small(scheme, seed, norm="layernorm"))
    assert identities.final_norm_factor(5) > 1e-3, "LayerNorm takes the mean away, which is no factor"


@pytest.mark.parametrize("pre", [False, True])
def test_both_placements_are_torchs(pre, monkeypatch):
    assert identities.against_torch(5, pre=pre) < 1e-5
    monkeypatch.setattr(identities, "_renamed", lambda theirs, pre: {})
    assert identities.against_torch(5, pre=pre) > 1e-2, "with other weights they differ"


def test_balance_at_two_lengths_is_balance_at_all():
    assert averaging_theory.balanced_residual(12, 5) < 1e-12


@pytest.mark.parametrize("scheme", ["post_norm", "pre_norm"])
def test_jacobians_take_both_forms(scheme):
    assert backprop_forms(scheme, depth=3, setting=MeanFieldSetting(dim=8, tokens=2, seed=5)).error < 1e-12
