"""Sizes are tried where the loss pulls at them, in the direction in which it pulls."""

import torch

from normlab.probes.measure.gradients import PullRow
from normlab.probes.measure.trials.sizes import PULL, sizes
from normlab.probes.trace.locate import locate
from tests.probes.zoo import build, inputs


def test_only_what_is_pulled_at_is_tried_and_taken_back():
    model, batch = build("llama").eval(), inputs("llama")
    layout = locate(model, lambda: model(**batch))
    name = "self_attn.k_proj.weight"
    assert list(sizes(layout, [PullRow(i, name, 0.1 * PULL) for i in range(3)])) == []
    smaller = list(sizes(layout, [PullRow(i, name, PULL) for i in range(3)]))
    larger = list(sizes(layout, [PullRow(i, "input_layernorm.weight", -PULL) for i in range(3)]))
    assert smaller[0].what == f"with {name} times 0.8 in every layer"
    assert larger[0].what == "with all gains times 1.25"
    assert [trial.milder for trial in larger] == ["", "with all gains times 1.25", "with all gains times 2"]
    with torch.no_grad():
        plain = model(**batch).logits.clone()
        for trial in (*smaller, *larger):
            with trial.changed():
                assert not torch.equal(model(**batch).logits, plain)
            assert torch.equal(model(**batch).logits, plain)
