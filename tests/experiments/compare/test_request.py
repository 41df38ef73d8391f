import pytest

from normlab.errors import ConfigError
from normlab.experiments.compare.request import CompareRequest, pick_baseline


def test_runs_are_counted_by_phase():
    asked = CompareRequest(schemes=("pre_norm", "keel"), depths=(2, 4), lrs=(1e-3, 3e-3, 1e-2), seeds=4, extend=2)
    assert asked.phases() == [3, 1, 1, 3]
    assert asked.most_runs() == 2 * 2 * 8
    assert asked.least_runs() == 2 * 2 * 6
    assert CompareRequest(lrs=(1e-3,), seeds=2).phases() == [1, 1]  # one rate: there is no grid that could grow


def test_rates_are_sorted_rounded_and_positive():
    assert CompareRequest(lrs=(1e-2, 1e-3, 0.0010001)).lrs == (1e-3, 1e-2)
    for rates in ((), (0.0,), (-1e-3,), (float("nan"),)):
        with pytest.raises(ConfigError, match="lrs"):
            CompareRequest(lrs=rates)


def test_one_limit():
    with pytest.raises(ConfigError, match="give either tokens"):
        CompareRequest(tokens=1000, budget="1m")


def test_a_baseline_is_named_with_or_without_its_options():
    names = ["keel", "block_attn_res(blocks=2)", "pre_norm"]
    assert pick_baseline(names, None) == "pre_norm"
    assert pick_baseline(names[:2], None) == "keel"
    assert pick_baseline(names, "Block-Attn-Res") == "block_attn_res(blocks=2)"
    both = ["pre_norm(embedding_norm=True)", "pre_norm"]
    assert pick_baseline(both, "pre_norm") == "pre_norm"
    assert pick_baseline(both, "pre_norm(embedding_norm=true)") == both[0]
    with pytest.raises(ConfigError, match="did you mean 'keel'"):
        pick_baseline(names, "kell")
