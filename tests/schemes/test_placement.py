"""The family's one equation; test_rows.py has every row of it."""

import math

import pytest
import torch

import normlab as nl
from normlab.schemes import Frame, make_sites

FRAME = Frame(8, make_sites(3))


def test_fixed_numbers_survive_to_empty_and_another_setting_is_refused():
    scheme = nl.scheme("ln_scaling").build(FRAME)
    numbers = [round(float(scheme.c(torch.ones(8), site)[0]), 6) for site in FRAME.sites]
    assert numbers == pytest.approx([1 / math.sqrt(n) for n in (1, 1, 2, 2, 3, 3)], abs=1e-6)
    emptied = nl.scheme("ln_scaling").build(FRAME).to_empty(device="cpu")
    assert [round(float(emptied.c(torch.ones(8), site)[0]), 6) for site in FRAME.sites] == numbers
    state = {key: value * 2 if key.startswith("c.") else value for key, value in scheme.state_dict().items()}
    with pytest.raises(RuntimeError, match="but the config says"):
        nl.scheme("ln_scaling").build(FRAME).load_state_dict(state)


def test_only_rows_without_a_norm_on_the_stream_are_linear():
    linear = {name for name in ("pre_norm", "peri_norm", "post_norm", "res_norm", "ln_scaling", "no_norm")
              if nl.scheme(name).build(FRAME).not_linear is None}  # fmt: skip
    assert linear == {"pre_norm", "peri_norm", "res_norm", "ln_scaling", "no_norm"}


def test_profiling_brings_admins_skip_to_the_size_of_the_stream():
    """omega_{i+1} = sqrt(1 + sum of the variances of the branches so far)."""
    scheme = nl.scheme("admin").build(FRAME)
    outputs = [size * torch.randn(4, 64, 8) for size in (1.0, 2.0, 0.5, 1.0, 3.0, 1.0)]

    def run():
        stream = scheme.open(torch.randn(4, 64, 8))
        for site in FRAME.sites:
            _, carry = scheme.read(stream, site)
            stream = scheme.write(stream, outputs[site.index], carry, site)

    scheme.profile_(run)
    total = 1.0
    for site in FRAME.sites:
        found = scheme.a(torch.ones(8), site).detach()
        assert found.tolist() == pytest.approx([math.sqrt(total)] * 8, rel=1e-5)
        total += float(outputs[site.index].var(unbiased=False))
