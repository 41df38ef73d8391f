"""Which modules are the layers of a model."""

import pytest
import torch
from torch import nn

import normlab as nl
from normlab.errors import UnsupportedError
from normlab.probes.trace.locate import locate, locate_all
from normlab.probes.trace.roles import BranchRoles, LayerRoles
from normlab.probes.trace.verbs import SchemeLayout
from tests.probes.zoo import Encoder, Homemade, build, inputs


def test_known_layers_keep_their_names_and_order():
    model, batch = build("llama"), inputs("llama")
    layout = locate(model, lambda: model(**batch))
    assert [name for name, _ in layout.layers] == ["model.layers.0", "model.layers.1", "model.layers.2"]
    assert (layout.architecture, layout.inferred, layout.notes) == ("LlamaDecoderLayer", False, [])


def test_two_stacks_are_two_layouts_in_the_order_of_the_forward_pass():
    class TwoTowers(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large = Homemade("pre", d=8), Homemade("post", d=32)

        def forward(self, tokens):
            return self.small(tokens) + self.large(tokens)

    model = TwoTowers().eval()
    small, large = locate_all(model, lambda: model(torch.arange(24).reshape(2, 12)))
    assert [name for name, _ in large.layers] == [f"large.blocks.{i}" for i in range(3)]
    assert (small.placement, large.placement) == ("pre_norm", "post_norm")
    assert (small.stack, large.stack) == ("small.blocks", "large.blocks")
    assert large.notes == [
        "HomemadeBlock is not in the table of architectures: the parts were inferred from the arithmetic"
    ]


def test_a_row_of_the_user_comes_before_the_table_and_a_scheme_before_hooks():
    row = LayerRoles("HomemadeBlock", (BranchRoles("ffn", "wide", pre="second"),))
    layout = locate(Homemade("pre"), lambda: pytest.fail("nothing is to be inferred"), roles=row)
    assert all(found is row for found in layout.roles.values())
    own = nl.Transformer(nl.TransformerConfig(vocab_size=11, dim=16, depth=2, heads=2))
    assert isinstance(locate(own, lambda: None), SchemeLayout)


def test_the_order_of_the_axes_is_read_from_the_attention():
    for batch_first in (True, False):
        assert locate(Encoder(norm_first=True, batch_first=batch_first), lambda: None).batch_first is batch_first


def test_one_layer_alone_is_no_depth():
    model = Homemade("pre", depth=1).eval()
    with pytest.raises(UnsupportedError, match="Homemade has no repeated layers"):
        locate(model, lambda: model(torch.arange(24).reshape(2, 12)))
