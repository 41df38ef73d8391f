"""Chunks run one after the other in this process; test_pipeline.py has real processes."""

import pytest
import torch

import normlab as nl
from normlab.model.chunk import Chunk, Depot
from normlab.model.stages import make_plan


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("scheme", ["pre_norm", "block_attn_res(blocks=4)", "dense_former", "mhc"])
def test_chunks_in_a_row_are_the_model(scheme, cached):
    config = nl.TransformerConfig(vocab_size=11, dim=16, depth=4, heads=2, scheme=scheme, init_std=0.2)
    model = nl.Transformer(config).double().eval()
    tokens = torch.randint(11, (2, 5))
    plan = make_plan(config, ranks=2, virtual_stages=2, cached=cached, shape=(2, 5))
    depots = [Depot(), Depot()]
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        wire = (tokens,)
        for index in range(4):
            wire = Chunk(model, plan, index, depots[plan.rank(index)])(*wire)
        torch.testing.assert_close(wire, model(tokens), rtol=0, atol=1e-12)


def test_a_kept_tensor_collects_the_gradients_of_its_readers():
    """out = 3x travels on; 2x is kept, and read twice later on this rank: dx = 3 + 2 (5 + 7)."""
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    depot = Depot()
    (out,) = depot.keep(0, [2 * x], (3 * x,))
    first, second = depot.fetch(0, 1)[0], depot.fetch(0, 1)[0]
    depot.clear(0)
    assert depot.shelves == {}
    (5 * first + 7 * second).sum().backward()
    assert x.grad is None
    out.sum().backward()
    assert x.grad.tolist() == [27.0, 27.0]
