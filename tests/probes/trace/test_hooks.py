"""The residual identity on every architecture, and the refusals."""

import re

import pytest
import torch

from normlab.errors import UnsupportedError
from normlab.probes.trace.hooks import Tracer
from normlab.probes.trace.identity import verify
from normlab.probes.trace.locate import locate
from normlab.probes.trace.roles import BranchRoles, LayerRoles
from tests.probes.zoo import ARCHITECTURES, Encoder, Homemade, build, inputs


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_identity_holds_in_every_layer(name):
    model, batch = build(name), inputs(name)
    layout = locate(model, lambda: model(**batch))
    errors = verify(layout, lambda: model(**batch)).errors
    # ALBERT's default is 12 hidden layers of one group; ours asks for three.
    assert len(errors) == 3
    assert max(errors) < 1e-4
    assert not layout.inferred
    assert layout.placement == ARCHITECTURES[name][0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_contributions_sum_to_the_change_without_copies(name):
    """The streaming pass keeps references, not copies: what a model changes in place (Falcon) must still be right."""
    model, batch = build(name), inputs(name)
    layout = locate(model, lambda: model(**batch))
    verify(layout, lambda: model(**batch))
    worst = []

    def check(record):
        stream = record.before
        for part in record.parts:
            grown = part.before + part.added if not layout.roles[id(record.module)].branches[-1].parallel else None
            if grown is not None and layout.placement in ("pre_norm", "peri_norm", "res_norm"):
                worst.append(float((part.after - grown).abs().max()))
            stream = part.after
        worst.append(float((stream - record.after).norm() / record.after.norm()))

    with Tracer(layout, check), torch.no_grad():
        model(**batch)
    assert max(worst) < 1e-5
    assert ("mlp" in layout.mutated) == (name in ("falcon", "falcon_7b"))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_torch_encoder_despite_its_fast_path(norm_first, batch_first):
    torch.manual_seed(0)
    model = Encoder(norm_first=norm_first, batch_first=batch_first).eval()
    tokens = torch.randint(0, 97, (2, 12))
    layout = locate(model, lambda: model(tokens))
    errors = verify(layout, lambda: model(tokens)).errors
    assert len(errors) == 3
    assert max(errors) < 1e-4
    assert layout.placement == ("pre_norm" if norm_first else "post_norm")
    shapes = []
    with Tracer(layout, lambda record: shapes.append(record.before.shape)), torch.no_grad():
        model(tokens)
    assert shapes == [(2, 12, 32)] * 3  # [batch, tokens, d] whatever the model's own order


@pytest.mark.parametrize(
    ("kind", "placement"),
    [
        ("pre", "pre_norm"),
        ("post", "post_norm"),
        ("peri", "peri_norm"),
        ("res", "res_norm"),
        ("parallel", "pre_norm, parallel branches"),
    ],
)
def test_unknown_models_are_inferred_and_said_so(kind, placement):
    torch.manual_seed(0)
    model = Homemade(kind).eval()
    tokens = torch.randint(0, 97, (2, 12))
    layout = locate(model, lambda: model(tokens))
    assert max(verify(layout, lambda: model(tokens)).errors) < 1e-4
    assert layout.inferred
    assert layout.placement == placement
    row = layout.roles[id(model.blocks[0])]
    assert [branch.kind for branch in row.branches] == ["attention", "ffn"]
    assert [branch.core or branch.added for branch in row.branches] == ["mixer", "wide"]
    assert "HomemadeBlock" in layout.notes[0]


def test_a_dead_branch_in_an_unknown_model_takes_its_neighbours_row():
    torch.manual_seed(0)
    model = Homemade("pre").eval()
    for parameter in (model.blocks[1].mixer.out.weight, model.blocks[1].mixer.out.bias):
        torch.nn.init.zeros_(parameter)
    tokens = torch.randint(0, 97, (2, 12))
    layout = locate(model, lambda: model(tokens))
    assert max(verify(layout, lambda: model(tokens)).errors) < 1e-4
    assert len(layout.roles[id(model.blocks[1])].branches) == 2


def test_what_cannot_be_explained_is_refused():
    class NoSkip(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(97, 8)
            self.blocks = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in "abc"
            )

        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = block[1](block[0](x))
            return x

    class Called(NoSkip):
        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return x

    tokens = torch.randint(0, 97, (2, 12))
    plain, called = NoSkip().eval(), Called().eval()
    with pytest.raises(UnsupportedError, match="no repeated layers"):
        locate(plain, lambda: plain(tokens))
    with pytest.raises(UnsupportedError, match=r"Sequential .* no sum with its input.*roles=LayerRoles"):
        locate(called, lambda: called(tokens))


def test_a_wrong_row_is_refused_and_the_module_named():
    """Naively taking Gemma's `mlp` output as what is added: the trap that other tools fall into."""
    model, batch = build("gemma2"), inputs("gemma2")
    naive = LayerRoles(
        "Gemma2DecoderLayer",
        (
            BranchRoles("attention", "self_attn", pre="input_layernorm"),
            BranchRoles("ffn", "mlp", pre="pre_feedforward_layernorm"),
        ),
    )
    layout = locate(model, lambda: model(**batch), roles=naive)
    with pytest.raises(UnsupportedError, match=r"layer 0 .*pre_feedforward_layernorm reads the stream before the ffn"):
        verify(layout, lambda: model(**batch))


def test_a_layer_that_is_unlike_its_kind_is_accused_and_not_refused():
    model = Homemade("pre").eval()
    tokens = torch.randint(0, 97, (2, 12))
    layout = locate(model, lambda: model(tokens))
    model.blocks[2].layout = "parallel"
    (breach,) = verify(layout, lambda: model(tokens)).breaches
    assert breach.layer == 2
    for block in model.blocks:
        block.layout = "parallel"
    with pytest.raises(UnsupportedError, match=r"layer 0 .*'blocks\.0'"):  # now the row is what is wrong
        verify(layout, lambda: model(tokens))


def _weighed(given, output, times):
    return (output[0] + times * given, *output[1:]) if isinstance(output, tuple) else output + times * given


@pytest.mark.parametrize("name", ["llama", "opt_350m", "gemma2", "bert", "homemade"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda given, output: _weighed(given, output, 2.0), r"(3|2) x what it was given \+"),
        (lambda given, output: _weighed(0 * given, given, 0.0), "returns what it was given"),
        (lambda given, output: output.roll(1, 1), "belongs to the token 1 before"),
        (lambda given, output: output / output.norm(dim=-1, keepdim=True), "normed once more|it returns"),
        (lambda given, output: output + torch.randn_like(output), "differs between two passes"),
    ],
    ids=["skip", "bypass", "shift", "norm", "noise"],
)
def test_what_a_broken_layer_does_instead_is_said(name, change, words):
    model = Homemade("pre").eval() if name == "homemade" else build(name)
    batch = {"tokens": torch.randint(0, 97, (2, 12))} if name == "homemade" else inputs(name)
    layers = [layer for _, layer in locate(model, lambda: model(**batch)).layers]

    def hook(_module, args, kwargs, output):
        given = args[0] if args else kwargs["hidden_states"]
        return (change(given, output[0]), *output[1:]) if isinstance(output, tuple) else change(given, output)

    layers[1].register_forward_hook(hook, with_kwargs=True)
    layout = locate(model, lambda: model(**batch))
    (breach,) = verify(layout, lambda: model(**batch)).breaches
    assert breach.layer == 1
    assert re.search(words, breach.instead), breach.instead


def test_a_known_architecture_is_accused_in_every_layer():
    model, batch = build("llama"), inputs("llama")
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _module, _args, output: output.clamp(-0.5, 0.5))
    layout = locate(model, lambda: model(**batch))
    breaches = verify(layout, lambda: model(**batch)).breaches
    assert [breach.layer for breach in breaches] == [0, 1, 2]
    assert all("changed on its way out" in breach.instead for breach in breaches)


def test_branches_and_layers_that_are_never_called_are_named():
    model, batch = build("llama"), inputs("llama")
    model.model.layers[1].forward = lambda hidden_states, **_: hidden_states
    layout = locate(model, lambda: model(**batch))
    (breach,) = verify(layout, lambda: model(**batch)).breaches
    assert (breach.layer, breach.expected) == (1, "self_attn is called")
    del model.model.layers[1].forward
    model.config.num_hidden_layers = 2
    layout = locate(model, lambda: model(**batch))
    found = verify(layout, lambda: model(**batch))
    assert found.uncalled == ("model.layers.2",)
    assert [name for name, _ in layout.layers] == ["model.layers.0", "model.layers.1"]


def test_a_model_without_repeated_layers():
    with pytest.raises(UnsupportedError, match="no repeated layers"):
        locate(torch.nn.Linear(3, 3), lambda: None)


def test_hooks_are_gone_afterwards():
    model, batch = build("llama"), inputs("llama")
    layout = locate(model, lambda: model(**batch))
    with pytest.raises(ZeroDivisionError), Tracer(layout, lambda record: 1 / 0):
        model(**batch)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
