"""What is mixed between layers is named; what is not mixed is not accused."""

import pytest
import torch
from torch import nn

from normlab.probes.diagnose import diagnose
from normlab.probes.trace.identity import verify
from normlab.probes.trace.locate import locate
from tests.probes.zoo import HomemadeBlock, build, inputs

TOKENS = torch.randint(0, 97, (2, 12), generator=torch.Generator().manual_seed(0))


class Mixed(nn.Module):
    """Six pre-norm blocks, and something between them."""

    def __init__(self, how, depth=6, d=32):
        super().__init__()
        self.how = how
        self.embed, self.head = nn.Embedding(97, d), nn.Linear(d, 97)
        self.blocks = nn.ModuleList(HomemadeBlock("pre", d) for _ in range(depth))
        self.weights = nn.Parameter(torch.full((depth,), 0.5))
        self.queries = nn.Parameter(torch.randn(depth, d))

    def forward(self, tokens):
        x = start = self.embed(tokens)
        outputs = [x]
        for i, block in enumerate(self.blocks):
            if self.how == "unet" and i >= 3:
                x = x + self.weights[i] * outputs[6 - i]
            elif self.how == "reinjected" and i:
                x = 1.1 * x + 0.2 * start
            elif self.how == "attention" and i:
                sources = torch.stack(outputs)
                shares = (sources @ self.queries[i]).softmax(0)
                x = (shares.unsqueeze(-1) * sources).sum(0)
            elif self.how == "skip" and i == 5:
                x = x + outputs[4]
            x = block(x)
            outputs.append(x)
        return self.head(x)


def examined(how):
    torch.manual_seed(0)
    model = Mixed(how).double().eval()
    layout = locate(model, lambda: model(TOKENS))
    return layout, verify(layout, lambda: model(TOKENS)).errors


@pytest.mark.parametrize(
    ("how", "name", "sentence"),
    [
        ("unet", "U-Net skips", "the input of layer 3 is layer 2's output + select(weights) x layer 2's output"),
        ("reinjected", "reinjected embedding", "input of layer 1 is 1.1 x layer 0's output + 0.2 x what entered the stack"),
        ("attention", "mixing over depth", "the input of layer 2 is computed from layer 1's output, layer 0's output"),
        ("skip", "skips between layers", "the input of layer 5 is layer 4's output + layer 3's output"),
    ],
)  # fmt: skip
def test_mixing_between_layers_is_named(how, name, sentence):
    layout, errors = examined(how)
    assert max(errors) < 1e-10  # inside the layers nothing is amiss: that is why it went unseen
    assert layout.between == name
    assert layout.placement == f"{name} over pre_norm"
    assert sentence in layout.notes[-1]


def test_a_known_architecture_whose_stream_changes_between_layers_is_accused():
    model, batch = build("llama"), inputs("llama")
    third, called = model.model.layers[2], nn.Module.__call__

    def halved(module, *args, **kwargs):
        return called(module, *((0.5 * args[0], *args[1:]) if module is third else args), **kwargs)

    assert verify(locate(model, lambda: model(**batch)), lambda: model(**batch)).breaches == ()
    nn.Module.__call__ = halved
    try:
        (breach,) = verify(locate(model, lambda: model(**batch)), lambda: model(**batch)).breaches
    finally:
        nn.Module.__call__ = called
    assert breach.layer == 2
    assert breach.instead == "the input of layer 2 is 0.5 x layer 1's output"


def test_a_plain_stack_has_no_mixing():
    layout, _ = examined("none")
    assert layout.between == ""
    assert layout.placement == "pre_norm"


def test_a_diagnosis_says_it_and_applies_no_law_of_plain_streams():
    torch.manual_seed(0)
    found = diagnose(Mixed("unet").eval(), [TOKENS], skips=False, loss="none")
    assert found.placement == "U-Net skips over pre_norm"
    assert any("what the model adds between them is in no layer's row" in note for note in found.notes)
    assert found.theory.xiong is None
