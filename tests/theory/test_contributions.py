import pytest

from normlab.theory.contributions import ContributionSetting, contributions


def test_pre_norm_dilutes_and_post_norm_does_not():
    pre = contributions("pre_norm", ContributionSetting(depth=48, dim=64))
    post = contributions("post_norm", ContributionSetting(depth=48, dim=64))
    assert pre.share_exponent == pytest.approx(-0.5, abs=0.12)
    assert pre.stream_exponent == pytest.approx(0.5, abs=0.2)
    assert pre.share[-1] < 0.25 < 0.4 < post.share[-1]
    assert post.stream == pytest.approx([1.0] * 48, abs=1e-6)


def test_the_initialisation_decides():
    small = contributions("pre_norm", ContributionSetting(depth=48, dim=64, init="gpt2"))
    assert small.stream[-1] / small.stream[0] < 2, "branches that start small hardly move the stream"
    assert abs(small.share_exponent) < 0.2


def test_shares_are_those_of_the_sums():
    found = contributions("pre_norm", ContributionSetting(depth=2, dim=32, tokens=4))
    assert found.layers == [1, 2]
    assert all(0 < share < 1.5 for share in found.share)
    assert found.to_dict()["last_share"] == found.share[-1]
