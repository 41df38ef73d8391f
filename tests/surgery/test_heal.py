"""Rates for what a swap has added."""

import pytest

from normlab.errors import ConfigError
from normlab.surgery.heal import Heal, parameter_groups
from tests.surgery.models import build, swapped

pytest.importorskip("transformers")


def test_new_parameters_have_a_group_of_their_own():
    model = swapped("llama", "block_attn_res")
    old, new = parameter_groups(model, lr=1e-4, new=10.0, weight_decay=0.1)
    assert {id(p) for p in new["params"]} == {id(p) for p in model.scheme.parameters()}
    assert len(old["params"]) + len(new["params"]) == len(list(model.parameters()))
    assert (old["lr"], new["lr"], old["weight_decay"], new["weight_decay"]) == (1e-4, pytest.approx(1e-3), 0.1, 0.0)
    (only,) = parameter_groups(build("llama"), lr=1e-4)
    assert only["lr"] == 1e-4


def test_healing_says_what_it_lacks():
    with pytest.raises(ConfigError, match="healing needs batches"):
        Heal([])
    with pytest.raises(ConfigError, match="got 0 steps"):
        Heal([1], steps=0)
