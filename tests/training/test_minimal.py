import pytest
import torch

from normlab.errors import UnsupportedError
from normlab.model import Transformer, TransformerConfig
from normlab.tasks import task
from normlab.training import TrainConfig, Trainer, cross_entropy
from normlab.training.minimal import SCHEMES, FastMinimal, attention_rows, entropy, tables, why_not

ARMS = (*SCHEMES, "pre_norm(final_norm=false)", "peri_norm(final_norm=false)", "res_norm(final_norm=false)")


def model(scheme="pre_norm", v=12, *, dim=None, seed=0, spread=0.3, **options):
    torch.manual_seed(seed)
    settings = {"ffn": "none", "positions": "nope", "tie_embeddings": False, "init_std": (v - 1) ** -0.5,
                "embedding_scale": 1.0, **options}  # fmt: skip
    made = Transformer(TransformerConfig(vocab_size=v, dim=dim or v - 1, depth=1, heads=1, scheme=scheme, **settings))
    with torch.no_grad():  # gains of 1 would hide a forgotten gain
        for name, p in made.named_parameters():
            if p.ndim == 1:
                p.add_(spread * torch.randn_like(p))
            elif "branches" in name:
                p.mul_(2)
    return made


def compare(made, ground, batch, tolerance, **options):
    exact = ground.targets == "exact"
    general = cross_entropy(made(batch.tokens), batch, exact=exact)
    want = torch.autograd.grad(general, list(made.parameters()))
    fast = FastMinimal(made, exact=exact, **options)
    for _ in range(2):  # the second time in used work space
        loss = fast(made, batch)
        got = torch.autograd.grad(loss, list(made.parameters()))
        assert abs(loss.item() - general.item()) < tolerance
        for (name, _), a, b in zip(made.named_parameters(), got, want, strict=True):
            assert (a - b).abs().max() < tolerance, name


GROUNDS = {
    "distinct": {"vocab": 12},
    "repeated": {"vocab": 12, "replacement": True},
    "exact": {"vocab": 12, "targets": "exact"},
    "exact repeated": {"vocab": 12, "targets": "exact", "replacement": True},
}


@pytest.mark.parametrize("scheme", ARMS)
@pytest.mark.parametrize("ground", GROUNDS)
def test_equals_the_general_model_in_float64(scheme, ground):
    ground = task("set_complement", **GROUNDS[ground])
    batch = ground.sample(7, 40 if ground.replacement else 11, torch.Generator().manual_seed(1))
    assert ground.replacement == bool((batch.targets < 0).any())  # where tokens repeat, some prefixes have seen all
    compare(model(scheme).double(), ground, batch, 1e-12)


@pytest.mark.parametrize("scheme", ARMS)
@pytest.mark.parametrize("tied", [False, True])
def test_equals_the_general_model_at_full_size(scheme, tied):
    ground = task("set_complement", vocab=32)
    batch = ground.sample(256, 31, torch.Generator().manual_seed(1))
    compare(model(scheme, v=32, tie_embeddings=tied), ground, batch, 3e-6)


@pytest.mark.parametrize("scheme", ARMS)
def test_scores_of_hundreds_do_not_underflow(scheme):
    """A prefix may hold only tokens whose scores are hundreds below the best of the vocabulary."""
    made, ground = model(scheme, spread=0.0).double(), task("set_complement", vocab=12)
    with torch.no_grad():
        made.branches[0].qkv.weight.mul_(40)
    assert tables(made).scores.max() - tables(made).scores.min() > 700
    compare(made, ground, ground.sample(9, 11, torch.Generator().manual_seed(0)), 1e-9)


@pytest.mark.parametrize("size", [3.0, 60.0])
def test_large_logits_take_a_shift_of_their_own(size):
    """Beyond the bound exp would overflow; both sides of the switch agree with the general model."""
    made = model("post_norm", spread=0.1).double()
    with torch.no_grad():
        made.head.weight.mul_(size)
    ground = task("set_complement", vocab=12)
    compare(made, ground, ground.sample(5, 11, torch.Generator().manual_seed(0)), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ARMS)
def test_compiled_equals_the_general_model(scheme):
    ground = task("set_complement", vocab=12)
    batch = ground.sample(16, 11, torch.Generator().manual_seed(1))
    compare(model(scheme), ground, batch, 3e-6, compiled=True)


def test_a_run_on_the_fast_path_follows_the_general_one(tmp_path):
    ground, config = task("set_complement", vocab=12), TrainConfig(steps=60, batch=16, length=11, log_every=1, lr=3e-3,
                                                                   schedule={"warmup": 5})  # fmt: skip
    slow, quick = model("peri_norm"), model("peri_norm")
    a = Trainer(slow, ground, config, tmp_path / "a", quiet=True).run()
    b = Trainer(quick, ground, config, tmp_path / "b", loss=FastMinimal(quick), quiet=True).run()
    assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scheme": "deep_norm"}, "the scheme 'deep_norm'"),
        ({"positions": "sinusoidal"}, "positions is 'sinusoidal'"),
        ({"softmax": "ssmax"}, "softmax is 'ssmax'"),
        ({"head_norm": True}, "head_norm is True"),
        ({"ffn": "gelu"}, "ffn is 'gelu'"),
        ({"scheme": {"name": "post_norm", "final_norm": True}}, "2 norms after the addition"),
    ],
)
def test_other_models_are_refused_with_the_reason(options, says):
    made = model(**options)
    assert says in why_not(made)
    with pytest.raises(UnsupportedError, match="minimal model only"):
        FastMinimal(made)


def test_attention_rows_are_the_models_own():
    made = model("pre_norm")
    tokens = task("set_complement", vocab=12).sample(4, 6, torch.Generator().manual_seed(0)).tokens
    rows = attention_rows(made, tokens)
    x = made.scheme.pre[0](made.embedding(tokens))
    q, k, _ = made.branches[0].qkv(x).chunk(3, -1)
    want = (q[:, -1:] @ k.transpose(1, 2) * made.branches[0].scale).softmax(-1).squeeze(1)
    assert torch.allclose(rows, want, atol=1e-6)
    assert torch.allclose(entropy(torch.full((1, 6), 1 / 6)), torch.ones(1))
    assert tables(made).scores.shape == (12, 12)
