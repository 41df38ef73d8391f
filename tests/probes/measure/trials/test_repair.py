"""What was damaged is regained in a few steps; what was trained is not, and everything is put back."""

import torch
from torch import nn

from normlab.probes.inputs.losses import HiddenAnew, pick
from normlab.probes.measure.trials.repair import _halves, read_repair
from normlab.probes.trace.locate import locate
from tests.probes.zoo import build


def taught():
    """A model that knows how to count."""
    model = build("llama").train()
    ids = (torch.arange(8)[:, None] * 5 + torch.arange(24)[None]) % 97
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), [{"input_ids": row} for row in ids.split(1)]


def test_damage_is_regained_and_everything_is_put_back():
    model, pieces = taught()
    layout = locate(model, lambda: model(**pieces[0]))
    loss = pick("auto", model, pieces[0])
    healthy = read_repair(layout, pieces, loss)
    assert healthy.gain < 0.03
    with torch.no_grad():
        weight = model.model.layers[1].mlp.down_proj.weight
        weight.add_(1.5 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    before = [p.detach().clone() for p in model.parameters()]
    model.requires_grad_(False)
    found = read_repair(layout, pieces, loss)
    assert found.gain > 3 * max(healthy.gain, 0.001)
    assert found.better >= 3
    for old, parameter in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, parameter)
        assert not parameter.requires_grad
        assert parameter.grad is None


def test_a_window_that_is_asked_for_twice_stays_on_one_side():
    windows = [torch.zeros(1, 4) for _ in range(3)]
    learnt, judged = _halves([HiddenAnew(window, draw) for draw in range(2) for window in windows])
    assert {id(piece.batch) for piece in learnt} & {id(piece.batch) for piece in judged} == set()
    assert (len(learnt), len(judged)) == (4, 2)
