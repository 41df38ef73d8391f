import torch
from torch import nn

from normlab.model.memory import saved_bytes


def test_saved_bytes_counts_what_autograd_keeps():
    layer = nn.Linear(8, 8, bias=False)
    x = torch.randn(5, 8)
    assert saved_bytes(lambda: layer(x).relu(), layer.parameters()) == 5 * 8 * 4 * 2  # the input, and relu's result
    with torch.no_grad():
        assert saved_bytes(lambda: layer(x), layer.parameters()) == 5 * 8 * 4
