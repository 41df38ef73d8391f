import pytest

import normlab as nl
from normlab.experiments.atlas.measure import law_of, measure
from normlab.experiments.atlas.request import AtlasRequest
from normlab.schemes import Frame, make_sites


def test_what_is_measured_is_what_the_schemes_say():
    request = AtlasRequest(schemes=("pre_norm", "post_norm", "block_attn_res"), depth=4, dim=32, rounds=1)
    pre, post, block = measure(request, quiet=True).entries
    assert pre.mixing[-1] == [1.0] * 9
    assert post.mixing is None
    assert block.mixing[-1] == pytest.approx([1 / 9] * 9)
    assert pre.stream[-1] > pre.stream[4] > pre.stream[0]
    assert block.loss == pytest.approx(pre.loss, rel=1e-5), "zero queries: the same function"
    assert block.effect == pytest.approx(pre.effect, rel=1e-4)
    assert pre.contribution[-1] < 0.7 * block.contribution[-1], "a source over a mean of sources"
    assert (pre.same_as, post.same_as, block.same_as) == (None, None, "pre_norm")
    assert law_of(nl.scheme("pre_norm"), Frame(8, make_sites(2))) == pytest.approx([1, 2**0.5, 3**0.5, 2, 5**0.5])


def test_the_law_is_that_of_the_initialisation():
    shape = {"schemes": ("pre_norm", "post_norm"), "depth": 24, "dim": 32, "rounds": 1}
    unit, post = measure(AtlasRequest(**shape, init="unit"), quiet=True).entries
    small, _ = measure(AtlasRequest(**shape, init="gpt2"), quiet=True).entries
    fair, _ = measure(AtlasRequest(**shape), quiet=True).entries
    assert unit.stream[-2] / unit.stream[2] > 3
    assert small.stream[-2] / small.stream[2] < 2.5
    assert fair.stream[0] == pytest.approx(1, rel=0.1)
    for entry in (unit, small, fair):
        measured, law = (values[-2] / values[2] for values in (entry.stream, entry.law))
        assert law == pytest.approx(measured, rel=0.35), "one law for one initialisation"
    assert post.law == pytest.approx([1.0] * 49)
