import pytest
import torch

import normlab as nl
from normlab.schemes.base import GPT2, Frame, Init, make_sites, tensors_of


def test_sites_count_layers_from_one_and_branches_from_zero():
    sites = make_sites(3)
    assert [(s.index, s.layer, s.kind) for s in sites[:3]] == [(0, 1, "attention"), (1, 1, "ffn"), (2, 2, "attention")]
    assert [s.opens_layer for s in sites] == [True, False] * 3
    assert [s.closes_layer for s in sites] == [False, True] * 3
    assert all(s.opens_layer and s.closes_layer for s in make_sites(3, ("attention",)))
    assert {(s.count, s.layers) for s in sites} == {(6, 3)}


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm", "dyt"])
def test_a_norms_parameters_are_counted_right(norm):
    frame = Frame(10, make_sites(1), norm=norm)
    assert frame.norm_parameters == sum(p.numel() for p in frame.new_norm().parameters())


class Branch:
    def __init__(self):
        self.weights = {role: torch.empty(200, 200) for role in ("query", "key", "value", "out", "up", "gate", "down")}

    def matrices(self):
        return self.weights


def test_gains_leave_queries_and_keys_alone_and_scales_meet_outputs_only():
    site, branch = make_sites(8)[0], Branch()
    frame = Frame(8, make_sites(8), init_std=0.1)
    Init(gain=lambda site, options: options).fill_(branch, site, options=3.0, frame=frame)
    found = {role: float(weight.std()) for role, weight in branch.weights.items()}
    assert found == pytest.approx({role: 0.1 if role in ("query", "key") else 0.3 for role in found}, rel=0.03)
    GPT2.fill_(branch, site, options=None, frame=frame)
    found = {role: float(weight.std()) for role, weight in branch.weights.items()}
    assert found == pytest.approx({role: 0.025 if role in ("out", "down") else 0.1 for role in found}, rel=0.03)


@pytest.mark.parametrize("name", sorted(nl.SCHEMES))
def test_a_stream_comes_back_from_its_parts(name):
    frame = Frame(8, make_sites(2))
    scheme = nl.scheme(name).build(frame)
    stream = scheme.open(torch.randn(2, 3, 8))
    again = scheme.from_parts(scheme.to_parts(stream), stream, frame.sites[0])
    assert type(again) is type(stream)
    pairs = list(zip(tensors_of(stream), tensors_of(again), strict=True))
    assert pairs
    assert all(torch.equal(a, b) for a, b in pairs)
