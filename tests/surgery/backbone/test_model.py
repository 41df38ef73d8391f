"""A swapped random model, measured and trained as one of ours."""

import pytest
import torch

from normlab.errors import UnsupportedError
from normlab.experiments.measures import layer_measures, without
from normlab.observe.effect import branch_effects
from normlab.surgery.backbone.config import BackboneConfig
from normlab.surgery.backbone.model import Backbone, check_causal
from normlab.tasks import Batch
from normlab.training.loop import cross_entropy
from normlab.training.optim import branch_matrices, decayed

transformers = pytest.importorskip("transformers")
SIZE = {"vocab_size": 17, "dim": 32, "depth": 2, "heads": 2}


def built(kind="llama", scheme="pre_norm", **values):
    config = {
        "vocab_size": 17,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "pad_token_id": None,
    }
    torch.manual_seed(0)
    return Backbone(BackboneConfig(architecture={"model_type": kind, **config, **values}, scheme=scheme))


def batch():
    tokens = torch.randint(17, (2, 9), generator=torch.Generator().manual_seed(1))
    return Batch(tokens[:, :-1], tokens[:, 1:])


def loss(model, part):
    return cross_entropy(model(part.tokens), part, exact=False)


def test_every_scheme_starts_from_the_same_weights():
    one, other = built(), built(scheme="block_attn_res(blocks=2)")
    weights = {name: p for name, p in other.named_parameters() if "scheme" not in name}
    assert weights.keys() == {name for name, _ in one.named_parameters() if "scheme" not in name}
    assert all(torch.equal(p, weights[name]) for name, p in one.named_parameters() if name in weights)
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(one.model.config)
    assert torch.equal(plain(batch().tokens).logits, one(batch().tokens))


def test_a_scheme_starts_as_its_authors_start_it():
    """Not neutral: LayerScale with small gains, not with ones."""
    gains = [float(p.detach().flatten()[0]) for p in built(scheme="layer_scale").scheme.parameters()]
    assert gains
    assert max(gains) < 1  # 1 is neutral


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gemma2"])
def test_layers_are_measured(kind):
    """Parallel branches (NeoX) are one site a layer."""
    model = built(
        kind, "block_attn_res(blocks=2)", **({"head_dim": 16, "num_key_value_heads": 2} if kind == "gemma2" else {})
    )
    found = layer_measures(model, batch(), loss)
    sites = len(model.sites)
    assert len(found.magnitude) == sites + 1
    assert len(found.output) == len(found.effect) == sites
    assert len(found.mixing) == sites + 1
    assert len(found.gradient) == len(found.skip) == 2
    assert min(found.gradient) > 0
    assert sum(found.gradient_share) == pytest.approx(1)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("scheme", ["pre_norm", "post_norm", "block_attn_res(blocks=2)"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_features_are_what_the_head_reads(kind, scheme):
    model = built(kind, scheme, **({"head_dim": 16, "num_key_value_heads": 2} if kind == "gemma2" else {})).eval()
    read = []
    hook = model.model.get_output_embeddings().register_forward_pre_hook(lambda _, taken: read.append(taken[0]))
    with torch.no_grad():
        model(batch().tokens)
        assert torch.equal(model.features(batch().tokens), read[0])
    hook.remove()


def test_effects_are_those_of_branches_whose_output_projection_is_zero():
    model, tokens = built().eval(), batch().tokens
    effects = branch_effects(model, tokens)
    for index, layer in (
        (0, model.model.model.layers[0].self_attn.o_proj),
        (3, model.model.model.layers[1].mlp.down_proj),
    ):
        with torch.no_grad():
            whole = model.features(tokens)
            kept = layer.weight.clone()
            layer.weight.zero_()
            change = (model.features(tokens) - whole).norm(dim=-1) / whole.norm(dim=-1)
            layer.weight.copy_(kept)
        assert effects[index] == pytest.approx(float(change.mean()), rel=1e-5)


def test_a_layer_that_is_left_out_is_gone():
    """The model without its second layer is the model that was never given one."""
    model, part = built().eval(), batch()
    shorter = built(num_hidden_layers=1).eval()
    shorter.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad(), without(model, {1}):
        assert torch.equal(model(part.tokens), shorter(part.tokens))


def test_what_decays_and_what_muon_takes():
    model = built(scheme="attn_res")
    kept = decayed(model)
    assert not any(kept[name] for name in kept if "scheme" in name or "norm" in name)
    assert not decayed(model, embeddings=False)["model.model.embed_tokens.weight"]
    assert len(branch_matrices(model)) == 2 * 7


def test_arithmetic_is_that_of_torch():
    model = built()
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name)
    one, three = model.flops_per_token(8), model.flops_per_token(8, training=True)
    assert one >= 2 * matrices
    assert three == pytest.approx(3 * one, rel=1e-3)


def test_a_token_that_sees_those_behind_it():
    check_causal(built())
    with pytest.raises(UnsupportedError, match="a bert sees the tokens behind each token"):
        check_causal(built("bert", intermediate_size=32))
