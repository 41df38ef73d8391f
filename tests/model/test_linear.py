import torch
from torch import nn

from normlab.model.linear import Embedding, Linear


def test_building_draws_no_random_numbers():
    """So that a model's weights depend on its one initialisation, not on the order of its parts."""
    before = torch.get_rng_state()
    Linear(4, 3)
    Embedding(5, 4)
    assert torch.equal(before, torch.get_rng_state())
    nn.Linear(4, 3)
    assert not torch.equal(before, torch.get_rng_state())


def test_a_bias_is_reset_to_zero_and_the_weight_is_left_alone():
    layer = Linear(4, 3)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(5.0)
    layer.reset_parameters()
    assert layer.bias.tolist() == [5.0] * 3
    layer.reset_bias_()
    assert layer.bias.tolist() == [0.0] * 3
    assert layer(torch.ones(4)).tolist() == [8.0] * 3
    Linear(4, 3, bias=False).reset_bias_()
