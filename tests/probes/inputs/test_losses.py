"""Batches of three kinds, and losses of models whose answer is known."""

import math

import pytest
import torch
from torch import nn

from normlab.errors import InputError
from normlab.probes.inputs.losses import Loss, call, halves, images, pick, token_ids, with_ids, with_images

IDS = torch.arange(12).reshape(3, 4)


def test_ids_are_found_and_replaced_in_every_kind_of_batch():
    for batch in (IDS, (IDS, "mask"), {"input_ids": IDS, "attention_mask": IDS}):
        assert token_ids(batch) is IDS
        assert torch.equal(token_ids(with_ids(batch, IDS + 1)), IDS + 1)
    assert with_ids({"input_ids": IDS, "labels": IDS}, IDS) == {"input_ids": IDS}
    assert token_ids(IDS.float()) is None
    assert token_ids({"pixel_values": IDS}) is None


def test_pixels_are_four_dimensional_and_real():
    pixels = torch.zeros(2, 3, 4, 4)
    assert images({"pixel_values": pixels}) is pixels
    assert images(pixels.long()) is None
    assert images((pixels[0],)) is None
    assert with_images((pixels, "more"), pixels + 1)[1] == "more"


def test_a_call_spreads_what_the_batch_is():
    class Sum(nn.Module):
        def forward(self, a, b=0):
            return a + b

    assert [call(Sum(), batch) for batch in (1, (1, 2), {"a": 1, "b": 3})] == [1, 3, 4]


class Constant(nn.Module):
    """The same logits everywhere."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, tokens):
        return self.logits.expand(*tokens.shape, -1)


def test_the_causal_loss_of_constant_logits_is_the_mean_surprise_of_all_but_the_first_token():
    tokens = torch.tensor([[1, 0, 0], [1, 1, 0]])
    loss = pick("causal", Constant([math.log(0.25), math.log(0.75)]), tokens)
    expected = -(3 * math.log(0.25) + math.log(0.75)) / 4
    assert float(loss(Constant([math.log(0.25), math.log(0.75)]), tokens)) == pytest.approx(expected, rel=1e-6)
    assert loss.chance is None  # the model does not say its vocabulary


def test_the_contrastive_loss_of_windows_that_look_alike_is_chance():
    same = torch.arange(64).expand(5, -1)
    loss = pick("contrastive", Constant([1.0, 2.0]), same)
    assert float(loss(Constant([1.0, 2.0]), same)) == pytest.approx(math.log(5), rel=1e-6)
    assert loss.chance == pytest.approx(math.log(5))
    assert pick("contrastive", Constant([1.0]), same[:1]).chance is None  # one window has nothing to be told from


def test_a_function_keeps_its_name_and_a_loss_is_handed_through():
    def surprise(model, batch):
        return torch.zeros(())

    assert pick(surprise, nn.Identity(), IDS).name == "surprise"
    ready = Loss("ready", surprise)
    assert pick(ready, nn.Identity(), IDS) is ready
    assert pick("none", nn.Identity(), IDS) is None
    with pytest.raises(InputError, match=r"causal loss needs token ids"):
        pick("causal", nn.Identity(), IDS.float())


def test_short_rows_still_make_two_halves_that_share_no_token():
    first, second = halves(torch.tensor([[7, 1, 2, 3, 4]]))
    assert (first.tolist(), second.tolist()) == ([[7, 1]], [[2, 3]])
