"""The table of families is what families.json says, it says enough, and some of it is run again here."""

import pytest
from tools import families

LIVE = {
    "albert": "post_norm",
    "bart": "encoder: post_norm; decoder: post_norm",
    "gpt_neox_japanese": "pre_norm, scaled",  # a bias that is spread over tokens
    "gpt_oss": "pre_norm",
    "granite": "pre_norm",
    "jamba": "pre_norm",
    "jetmoe": "pre_norm",  # a router, and so a second softmax, inside of its attention
    "modernbert": "pre_norm",
    "mt5": "encoder: pre_norm; decoder: pre_norm",
    "olmo2": "res_norm",
    "openai-gpt": "post_norm",
    "recurrent_gemma": "pre_norm",
    "xlnet": "post_norm",
}


made = pytest.mark.skipif(not families.RESULTS.exists(), reason="`make families` has not been run here")


@made
def test_the_page_is_made_of_the_results():
    assert families.PAGE.read_text(encoding="utf-8") == families.table(families.load().values())


@made
def test_enough_families_were_tried_and_understood():
    known = families.load()
    assert set(known) == set(families.names())
    tried = families.tried(known.values())
    assert len(tried) >= 110
    attended = families.with_attention(tried)
    assert len(families.exact(attended)) >= 0.95 * len(attended)
    for family in tried:
        assert family.why or family.outcome == "diagnosed", f"{family.name} is refused without a reason"
        assert family.attention != "not measured, without a reason", family.name
        assert family.monitor == "works" or family.outcome == "refused", f"{family.name}: {family.monitor}"


@pytest.mark.parametrize("name", LIVE)
def test_a_family_as_the_table_says(name):
    found = families.attempt(name)
    listed = families.load().get(name, found)
    assert (found.outcome, found.placement, found.attention) == (listed.outcome, listed.placement, listed.attention)
    assert found.outcome == "diagnosed", found.why
    assert LIVE[name] in found.placement  # ModernBERT's first layer has no norm in front of its attention
    assert found.identity_error < 1e-4
    assert found.monitor == "works"
