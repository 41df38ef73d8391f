"""What is asked cannot change on its way, and what is not asked has the documented value."""

from dataclasses import FrozenInstanceError, replace

import pytest

from normlab.probes.diagnose import diagnose
from normlab.probes.inputs.request import DiagnoseOptions
from tests.probes.zoo import build, inputs


def test_a_request_does_not_change():
    asked = DiagnoseOptions()
    with pytest.raises(FrozenInstanceError):
        asked.seed = 1
    assert replace(asked, seed=1) != asked


def test_what_is_switched_off_is_not_measured():
    asked = DiagnoseOptions(loss="none", attention=False, skips=False)
    found = diagnose(build("llama"), [inputs("llama")], **vars(asked))
    assert found.loss is None
    assert found.causal is None
    assert found.lengths == ()
    assert all(row.entropy is None and row.gradient_norm is None for row in found.layers)
    assert all(row.norm > 0 for row in found.layers)
