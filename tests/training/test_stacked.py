import pytest
import torch

from normlab.model import Transformer, TransformerConfig
from normlab.tasks import Batch, task
from normlab.training import TrainConfig, Trainer, cross_entropy
from normlab.training.ensemble import Ensemble, choose
from normlab.training.minimal import SCHEMES, FastMinimal
from normlab.training.record import read_log
from normlab.training.stacked import COMPILE_FROM, StackedMinimal

V = 10


def model(seed, scheme="pre_norm", **options):
    torch.manual_seed(seed)
    made = Transformer(TransformerConfig(vocab_size=V, dim=V - 1, depth=1, heads=1, scheme=scheme, ffn="none",
                                         positions="nope", init_std=0.3, embedding_scale=1.0, **options))  # fmt: skip
    with torch.no_grad():  # gains of 1 would hide a forgotten gain
        for p in made.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return made


def compare(scheme, ground, tolerance, *, compiled=False, dtype=torch.float64, **options):
    models = [model(seed, scheme, **options).to(dtype) for seed in range(3)]
    batches = [ground.sample(5, 8, torch.Generator().manual_seed(s)) for s in range(3)]
    together = Batch(*(torch.stack([getattr(b, key) for b in batches]) for key in ("tokens", "targets")))
    exact = ground.targets == "exact"
    law = torch.stack([b.law for b in batches]) if exact else None
    flat = torch.stack([torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models])
    losses, slopes = StackedMinimal(models[0], ground, compiled=compiled)(flat, together.tokens, together.targets, law)
    for i, (made, batch) in enumerate(zip(models, batches, strict=True)):
        want = cross_entropy(made(batch.tokens), batch, exact=exact)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(want, list(made.parameters()))])
        assert abs(losses[i] - want) < tolerance
        assert (slopes[i] - gradient).abs().max() < tolerance


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tied", [False, True])
def test_equals_the_general_model(scheme, tied):
    compare(scheme, task("set_complement", vocab=V), 1e-12, tie_embeddings=tied)


@pytest.mark.parametrize("options", [{"replacement": True}, {"targets": "exact"}])
def test_other_targets(options):
    compare("peri_norm", task("set_complement", vocab=V, **options), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_compiled_equals_the_general_model(scheme):
    compare(scheme, task("set_complement", vocab=V), 1e-6, compiled=True, dtype=torch.float32)


def test_members_follow_separate_runs_on_the_fast_path(tmp_path):
    ground = task("set_complement", vocab=V)
    configs = [
        TrainConfig(steps=80, batch=4, length=6, log_every=1, seed=s, lr=3e-3, schedule={"warmup": 5}) for s in range(2)
    ]
    ensemble = Ensemble([model(c.seed) for c in configs], ground, configs, tmp_path / "all", quiet=True)
    assert ensemble.fast is not None
    ensemble.run()
    for i, config in enumerate(configs):
        alone = model(config.seed)
        Trainer(alone, ground, config, tmp_path / str(i), loss=FastMinimal(alone), quiet=True).run()
        logs = [read_log(p / "log.jsonl", "train") for p in (tmp_path / str(i), tmp_path / f"all/member-{i}")]
        assert [a["loss"] for a in logs[0]] == pytest.approx([b["loss"] for b in logs[1]], abs=1e-4)


def test_long_runs_of_the_minimal_model_are_stacked():
    config = TrainConfig(steps=COMPILE_FROM, batch=256, length=9)
    assert choose([model(0), model(1)], config).how == "stacked"
    assert choose([model(0), model(1)], config.replace(steps=COMPILE_FROM - 1)).how == "separate"
