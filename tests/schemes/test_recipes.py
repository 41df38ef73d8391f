"""What is put around another placement runs with that placement's recipe: else a comparison of both has another embedding."""

import pytest

from normlab.experiments.compare.arms import Arm
from normlab.experiments.compare.experiment import run_of
from normlab.experiments.compare.request import CompareRequest
from normlab.schemes.names import parse_scheme
from normlab.schemes.recipes import RECIPES, Recipe, recipe_of


@pytest.mark.parametrize("around", ["attn_res", "block_attn_res"])
@pytest.mark.parametrize("inner", ["pre_norm", "peri_norm", "res_norm", "post_norm"])
def test_a_placement_and_what_is_put_around_it_have_one_recipe(around, inner):
    pair = (inner, f"{around}(inner={inner})")
    assert recipe_of(parse_scheme(pair[1])) is RECIPES[inner]
    request = CompareRequest(schemes=pair, baseline=inner, depths=(2,), dim=32, tokens=4096)
    alone, inside = (run_of(request, Arm(name, 2), lr=0.01, seed=0, steps=4) for name in pair)
    for field in ("embedding_scale", "embedding_std", "init_std", "qk_norm"):
        assert getattr(alone.model, field) == getattr(inside.model, field)
    assert alone.train == inside.train


def test_a_scheme_of_which_nothing_is_known_has_an_empty_recipe():
    assert recipe_of(parse_scheme("siamese_norm")) == Recipe()
