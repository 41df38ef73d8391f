import copy

import pytest
import torch

import normlab as nl
from normlab.errors import InputError, UnsupportedError

SHAPE = {"vocab_size": 23, "dim": 16, "depth": 3, "heads": 2, "max_length": 12}


def build(**changes):
    return nl.Transformer(nl.TransformerConfig(**{**SHAPE, **changes}))


TOKENS = torch.randint(0, 23, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("positions", ["rope", "nope", "learned", "sinusoidal"])
@pytest.mark.parametrize("ffn", ["swiglu", "geglu", "gelu", "gelu_tanh", "relu", "none"])
def test_every_part_runs_and_caches(positions, ffn):
    model = build(positions=positions, ffn=ffn, kv_heads=1).eval()
    assert len(model.branches) == (3 if ffn == "none" else 6)
    one = model.generate(TOKENS[:, :4], max_new_tokens=6, temperature=0)
    two = model.generate(TOKENS[:, :4], max_new_tokens=6, temperature=0, use_cache=False)
    assert torch.equal(one, two)


def test_positions_matter_except_for_nope():
    for positions in ("rope", "learned", "sinusoidal", "nope"):
        model = build(positions=positions, causal=False, init_std=0.5).eval()
        swapped = TOKENS[:, [1, 0, *range(2, 8)]]
        same = torch.allclose(model(TOKENS)[:, 5], model(swapped)[:, 5], atol=1e-5)
        assert same == (positions == "nope"), positions


def test_a_bidirectional_model_sees_the_future():
    changed = TOKENS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 23
    assert torch.equal(build()(TOKENS)[:, 0], build()(TOKENS)[:, 0]) is False  # fresh weights each time
    both, causal = build(causal=False), build()
    assert not torch.allclose(both(TOKENS)[:, 0], both(changed)[:, 0], atol=1e-6)
    assert torch.allclose(causal(TOKENS)[:, 0], causal(changed)[:, 0], atol=1e-7)


def test_sampling_is_seeded_and_top_k_restricts():
    model = build()
    draw = [
        model.generate(TOKENS, max_new_tokens=4, generator=torch.Generator().manual_seed(5), top_k=k) for k in (5, 5, 1)
    ]
    assert torch.equal(draw[0], draw[1])
    assert torch.equal(draw[2], model.generate(TOKENS, max_new_tokens=4, temperature=0))


def test_parameters_are_counted_once():
    tied, untied = build(), build(tie_embeddings=False)
    assert untied.num_parameters() - tied.num_parameters() == 23 * 16
    assert tied.num_parameters(embeddings=False) == untied.num_parameters(embeddings=False)
    assert tied.num_parameters() == sum(p.numel() for p in tied.parameters())


def test_construction_draws_the_same_numbers_on_any_path():
    torch.manual_seed(3)
    one = build().state_dict()
    torch.manual_seed(3)
    two = build().state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (torch.tensor([[0, 23]]), "0 to 22, but these run from 0 to 23"),
        (torch.tensor([[-1, 3]]), "from -1 to 3"),
        (torch.tensor([1, 2]), r"\[batch, time\]"),
        (torch.zeros(1, 13, dtype=torch.long), "13 tokens is longer than the 12 learned positions"),
    ],
)
def test_bad_tokens_are_one_sentence(tokens, words):
    with pytest.raises(InputError, match=words):
        build(positions="learned")(tokens)


def test_bad_generation_is_one_sentence():
    with pytest.raises(InputError, match="bidirectional"):
        build(causal=False).generate(TOKENS, max_new_tokens=1)
    with pytest.raises(InputError, match="prompt"):
        build().generate(TOKENS[:, :0], max_new_tokens=1)
    with pytest.raises(InputError, match="negative"):
        build().generate(TOKENS, max_new_tokens=-1)
    with torch.no_grad(), pytest.raises(InputError, match="9 tokens do not fit into a cache made for 8"):
        model = build()
        cache = model.new_cache(2, 8)
        model(TOKENS, cache=cache)
        model(TOKENS[:, :1], cache=cache)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("softmax", ["plain", "ssmax", "adaptive"])
def test_left_padding_changes_nothing(softmax, causal):
    """Outputs and gradients of the real tokens, against the same tokens without padding (no positions)."""
    model = build(softmax=softmax, causal=causal, positions="nope", init_std=0.3).double()
    padded = torch.cat((torch.zeros(2, 3, dtype=torch.long), TOKENS), dim=1)
    mask = torch.tensor([[False] * 3 + [True] * 8] * 2)
    gradients = []
    for tokens, seen in ((TOKENS, None), (padded, mask)):
        model.zero_grad()
        logits = model(tokens, attention_mask=seen)[:, -8:]
        logits.logsumexp(-1).mean().backward()
        gradients.append([logits.detach(), *(p.grad.clone() for p in model.parameters())])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


def test_bad_calls_are_one_sentence():
    model = build()
    for call, words in (
        (lambda: model(TOKENS.float()), "whole numbers"),
        (lambda: model([[1, 2]]), "list"),
        (
            lambda: model(TOKENS, attention_mask=torch.ones(2, 5).bool()),
            r"attention mask is \[batch, keys\] = \(2, 8\)",
        ),
        (lambda: model(TOKENS, attention_mask=torch.zeros(2, 8)), "additive"),
        (lambda: model(TOKENS, cache=model.new_cache(2, 8)), "no_grad"),
        (lambda: model.generate(TOKENS, max_new_tokens=1, top_k=0), "top_k"),
        (lambda: model.generate(TOKENS, max_new_tokens=1, temperature=float("nan")), "temperature"),
        (lambda: build(positions="learned").generate(TOKENS, max_new_tokens=5), "12 learned positions"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    with torch.no_grad(), pytest.raises(InputError, match="bidirectional"):
        both = build(causal=False)
        both(TOKENS, cache=both.new_cache(2, 8))


def test_generation_keeps_the_mode_of_every_part():
    model = build(dropout=0.1)
    model.branches[0].eval()
    model.generate(TOKENS, max_new_tokens=1, temperature=1e-40)
    assert model.training
    assert not model.branches[0].training


def test_mixing_in_low_precision_and_inference_mode():
    model = build().bfloat16()
    with torch.inference_mode():
        matrix = model.depth_mixing(TOKENS)
    assert torch.equal(matrix, torch.ones(7, 7).tril().expand(2, 8, 7, 7).bfloat16())
    with pytest.raises(UnsupportedError, match="differ by channel"):
        model = build(scheme=nl.scheme("attn_res", heads=2))
        torch.nn.init.normal_(model.scheme.queries)
        model.depth_mixing(TOKENS)


def test_post_norm_has_no_mixing_matrix():
    with pytest.raises(UnsupportedError, match="normalises the stream itself"):
        build(scheme="post_norm").depth_mixing(TOKENS)


def test_pre_norm_mixing_is_the_lower_triangle():
    matrix = build().double().depth_mixing(TOKENS)
    assert torch.equal(matrix, torch.ones(7, 7).tril().expand(2, 8, 7, 7).double())


def test_mixing_leaves_the_model_as_it_was():
    model = build(scheme="attn_res")
    model.train()
    model.enable_checkpointing()
    model.depth_mixing(TOKENS)
    assert model.training
    assert model.checkpointing
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm", "dyt", "derf"])
@pytest.mark.parametrize("scheme", ["pre_norm", "post_norm", "block_attn_res"])
def test_every_norm_trains(norm, scheme):
    model = build(norm=norm, scheme=scheme)
    model(TOKENS).logsumexp(-1).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_checkpointing_with_the_value_residual():
    model = build(value_residual=True).double()

    def gradients():
        model.zero_grad()
        model(TOKENS).logsumexp(-1).mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = gradients()
    model.enable_checkpointing()
    for one, two in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at its inputs' gradients
@pytest.mark.parametrize("scheme", ["pre_norm", "attn_res", "mhc"])
def test_compiled_branches_are_the_same_function(scheme):
    """Values and gradients; the names of parameters stay, so checkpoints do."""
    torch._dynamo.reset()
    config = nl.TransformerConfig(vocab_size=17, dim=16, depth=2, heads=2, scheme=scheme)
    torch.manual_seed(0)
    plain, tokens = nl.Transformer(config).double(), torch.arange(10).view(2, 5)
    compiled = copy.deepcopy(plain).compile_branches(backend="aot_eager", fullgraph=True)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    for model in (plain, compiled):
        model(tokens).square().sum().backward()
    torch.testing.assert_close(compiled(tokens), plain(tokens))
    for (name, a), b in zip(compiled.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
