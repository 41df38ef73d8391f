"""Faults of parallel streams and of depth: planted, found, and not seen in healthy twins; every verdict counted."""

import pytest
import torch
import transformers

import normlab as nl
from normlab.probes.diagnose import diagnose

N = 4
VOCABULARY = 61
SCHEMES = {
    "static hyper-connections": nl.scheme("hyper_connections", dynamic=False, streams=N),
    "dynamic hyper-connections": nl.scheme("hyper_connections", streams=N),
    "mHC": nl.scheme("mhc", streams=N, initial="stream"),
}


def build(name, seed=0):
    """Branches that write mostly into one stream each: what training does, and what keeps streams apart."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY,
        "dim": 32,
        "depth": 8,
        "heads": 4,
        "max_length": 64,
        "start": "authors",
        "init_std": 0.2,
    }
    model = nl.Transformer(nl.TransformerConfig(scheme=SCHEMES[name], **shape)).eval()
    with torch.no_grad():
        if name != "mHC":
            for index, beta in enumerate(model.scheme.beta):
                beta.copy_(0.3 + torch.eye(N)[index % N])
    return model


def alike(model):
    """Every stream becomes the mean of all, and every branch writes the same to each."""
    with torch.no_grad():
        if hasattr(model.scheme, "beta"):
            model.scheme.beta.fill_(1.0)
            model.scheme.mix[:, :, 1:] = 1 / N
        else:
            model.scheme.bias[:, N:] = 0.0


def amplifying(model):
    """The bug of a public library in small: a row sums to 1.3 instead of 1."""
    with torch.no_grad():
        model.scheme.mix[:, :, 1:] *= 1.3


def run(model):
    ids = torch.randint(0, VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(0))
    return diagnose(model, [ids], skips=False, attention=False)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_streams_that_differ_are_not_accused(name, seed):
    found = run(build(name, seed))
    assert [
        verdict.title for verdict in found.verdicts if verdict.subject not in ("loss", "training")
    ] == []  # random weights know nothing
    assert found.summary.homogenisation < 0.9
    assert found.summary.composite_gain == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", SCHEMES)
def test_streams_that_are_alike_are_found(name):
    model = build(name)
    alike(model)
    verdict = run(model).verdict("stream_homogenisation")
    assert verdict is not None
    assert verdict.value == pytest.approx(1, abs=1e-3)
    assert 7 in verdict.layers


@pytest.mark.parametrize("name", ["static hyper-connections", "dynamic hyper-connections"])
def test_mixing_that_amplifies_is_found(name):
    model = build(name)
    amplifying(model)
    found = run(model)
    verdict = found.verdict("unbounded_mixing")
    assert verdict is not None
    assert verdict.value == pytest.approx(1.3**16, rel=1e-4)  # sixteen branches, each 1.3 times the identity
    assert verdict.layers[0] == 6  # 1.3^12 = 23, 1.3^14 = 39
    assert found.layers[3].mixing_gain == pytest.approx(1.3**2, rel=1e-4)


def test_mhc_cannot_amplify_whatever_its_coefficients():
    """The positive of the rule above has no twin in mHC: that is its point."""
    model = build("mHC")
    with torch.no_grad():
        model.scheme.bias.add_(torch.randn_like(model.scheme.bias))
    assert run(model).summary.composite_gain < 1.5


@pytest.mark.parametrize(
    "scheme", ["attn_res", "block_attn_res", "dense_former", "hyper_connections", "mhc", "pre_norm"]
)
def test_the_depth_mixing_matrix_is_the_models_own_and_is_shown(scheme):
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "dim": 32, "depth": 3, "heads": 4, "max_length": 64, "init_std": 0.2}
    model = nl.Transformer(nl.TransformerConfig(scheme=scheme, **shape)).eval()
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    ids = torch.randint(0, VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(0))
    found = diagnose(model, [ids], skips=False, attention=False)
    expected = model.depth_mixing(ids).mean((0, 1))
    torch.testing.assert_close(torch.tensor(found.mixing.matrix), expected)
    assert 0 <= found.identity_error < 1e-4
    assert "depth mixing |M|" in str(found)
    assert 1 <= found.layers[1].effective_sources <= 4
    again = type(found).from_dict(found.to_dict())
    assert again.mixing.reads == (0, 2, 4)


def test_a_scheme_without_a_matrix_says_why():
    model = nl.Transformer(nl.TransformerConfig(scheme="siamese_norm", vocab_size=61, dim=32, depth=3, heads=4))
    found = run(model.eval())
    assert "normalises both streams" in found.mixing.absent
    assert "no identity was checked" in " ".join(str(found).split())
    assert found.to_dict()["identity_error"] is None


def test_the_head_of_several_streams_is_no_jump():
    """It reads the sum of four; compared with one stream that would look like growth."""
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "dim": 32, "depth": 4, "heads": 4, "max_length": 64, "init_std": 0.2}
    model = nl.Transformer(nl.TransformerConfig(scheme="hyper_connections", **shape)).eval()
    twin = nl.Transformer(nl.TransformerConfig(scheme="pre_norm", **shape)).eval()
    twin.load_state_dict(model.state_dict(), strict=False)
    twin.branches.load_state_dict(model.branches.state_dict())
    several, one = run(model), run(twin)  # at the start all streams are one, and both models are the same function
    assert [r.norm for r in several.layers] == pytest.approx([r.norm for r in one.layers], rel=1e-4)
    assert several.theory.growth_exponent == pytest.approx(one.theory.growth_exponent)


# -- dilution ---------------------------------------------------------------------------------------------------------
DEEP = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"hidden_size": 48, "intermediate_size": 96}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 48, "n_positions": 64}),
    "pythia": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {"hidden_size": 48, "intermediate_size": 96}),
}


def deep(name, depth=24):
    torch.manual_seed(0)
    config, model, shape = DEEP[name]
    layers = (
        {"n_layer": depth, "n_head": 4} if name == "gpt2" else {"num_hidden_layers": depth, "num_attention_heads": 4}
    )
    settings = getattr(transformers, config)(vocab_size=97, **shape, **layers, initializer_range=0.12)
    built = getattr(transformers, model)(settings).eval()
    for layer_name, parameter in built.named_parameters():
        if name == "gpt2" and "c_proj.weight" in layer_name:
            parameter.data *= 6  # undo GPT-2's small start: every layer of the healthy twin counts
    return built


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("fault", [False, True])
def test_dilution_in_three_architectures(name, fault):
    """Strong first layers and late ones of a tenth: the stream outgrows them. The twin's layers are all alike."""
    model = deep(name)
    if fault:
        ends = ("down_proj.weight", "o_proj.weight", "c_proj.weight", "dense_4h_to_h.weight", "attention.dense.weight")
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                number = next((int(part) for part in key.split(".") if part.isdigit()), 0)
                if key.endswith(ends) and number >= 4:
                    parameter *= 0.1
    ids = torch.randint(5, 97, (2, 32), generator=torch.Generator().manual_seed(1))
    found = diagnose(model, [{"input_ids": ids}], skips=False, attention=False, loss="none")
    verdict = found.verdict("pre_norm_dilution")
    assert (verdict is not None) == fault, found.summary
    if fault:
        assert verdict.value < 0.08
