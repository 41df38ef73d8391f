"""The fair start: one rule for all schemes, at any width; what a scheme defines otherwise is said on its card."""

import math
from collections import defaultdict

import pytest
import torch

from normlab.errors import ConfigError
from normlab.model import Transformer, TransformerConfig
from normlab.schemes import SCHEMES

DEPTH, VOCABULARY = 6, 256
MATRICES_OF_THEIR_OWN = {"deep_norm", "sub_norm", "ngpt"}


def built(scheme, dim=64, **options):
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "dim": dim, "depth": DEPTH, "heads": 4}
    return Transformer(TransformerConfig(scheme=scheme, **shape, **options))


@torch.no_grad()
def sizes(model):
    """Standard deviation of each role's matrices times sqrt(inputs), and the embedding's rms in the stream."""
    found = defaultdict(list)
    for branch in model.branches:
        for role, weight in branch.matrices().items():
            found[role].append(weight.square().mean() * weight.shape[1])
    rows = {role: math.sqrt(sum(squares) / len(squares)) for role, squares in found.items()}
    tokens = torch.arange(VOCABULARY)[None]
    return {**rows, "embedding": float(model.embed(tokens, tokens[0]).square().mean().sqrt())}


@pytest.mark.parametrize("dim", [32, 64, 128])
def test_every_scheme_starts_as_pre_norm_does_but_for_what_it_defines(dim):
    reference = sizes(built("pre_norm", dim))
    outputs = (2 * DEPTH) ** -0.5
    assert reference == pytest.approx({r: outputs if r in ("out", "down") else 1.0 for r in reference}, rel=0.03)
    for name in SCHEMES:
        far = {role for role, size in sizes(built(name, dim)).items() if abs(size / reference[role] - 1) > 0.1}
        assert bool(far) == (name in MATRICES_OF_THEIR_OWN), (name, far)
        if far:
            assert SCHEMES[name].card.own_start, name
            assert "embedding" not in far


def test_before_the_fair_start_most_schemes_differed():
    """The same measurement of the start that all models had: it can fail, and does."""
    reference = sizes(built("pre_norm", start="authors"))
    differ = [
        name
        for name in SCHEMES
        if any(abs(size / reference[role] - 1) > 0.1 for role, size in sizes(built(name, start="authors")).items())
    ]
    assert len(differ) > 20


def test_what_a_scheme_defines_stays():
    gain = (8 * DEPTH) ** -0.25
    deep = sizes(built("deep_norm"))
    assert deep["query"] == pytest.approx(1.0, rel=0.03)
    assert all(deep[role] == pytest.approx(gain, rel=0.03) for role in ("value", "out", "up", "gate", "down"))
    assert sizes(built("sub_norm"))["down"] == pytest.approx(math.sqrt(math.log(2 * DEPTH)), rel=0.03)
    assert sizes(built("ngpt"))["down"] == pytest.approx(math.sqrt(168 / 64), rel=0.01)  # columns of length 1


def test_the_factor_multiplies_the_branches_and_not_the_embedding():
    half = sizes(built("pre_norm", start_factor=0.5))
    assert half.pop("embedding") == pytest.approx(1.0, rel=0.03)
    whole = sizes(built("pre_norm"))
    assert half == pytest.approx({role: 0.5 * whole[role] for role in half}, rel=1e-6)
    with pytest.raises(ConfigError, match="start_factor"):
        built("pre_norm", start="authors", start_factor=0.5)


def test_the_head_is_not_multiplied():
    model = built("pre_norm")
    features = torch.randn(2, 3, 64)
    torch.testing.assert_close(model.logits(features), features @ model.embedding.weight.T)
    assert float(model.embedding.weight.std().detach()) == pytest.approx(64**-0.5, rel=0.03)
    untied = built("pre_norm", tie_embeddings=False)
    assert float(untied.head.weight.std().detach()) == pytest.approx(64**-0.5, rel=0.03)


@pytest.mark.parametrize("kind", ["plain", "gpt2", "xavier"])
def test_a_recipe_can_be_given_to_another_scheme(kind):
    """The controls of a comparison of recipes: Pre-Norm with somebody else's matrices."""
    like = {"plain": "peri_norm", "gpt2": "pre_norm", "xavier": "post_norm"}[kind]
    theirs = sizes(built(like, start="authors"))
    ours = sizes(built("pre_norm", start=kind))
    assert ours == pytest.approx(theirs, rel=1e-6)
