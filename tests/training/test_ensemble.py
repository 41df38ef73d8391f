import json
import os
import signal

import pytest
import torch

from normlab.errors import ConfigError
from normlab.model import Transformer, TransformerConfig
from normlab.tasks import Batch, task
from normlab.training import Schedule, TrainConfig, Trainer
from normlab.training.checkpoint import latest
from normlab.training.ensemble import Ensemble, choose
from normlab.training.record import read_log

GROUND = task("set_complement", vocab=8)


def model(seed=0, scheme="pre_norm", **options):
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(vocab_size=8, dim=8, depth=2, heads=2, scheme=scheme, **options))


def config(seed=0, **options):
    defaults = {
        "steps": 20,
        "batch": 4,
        "length": 6,
        "log_every": 1,
        "checkpoint_every": 7,
        "schedule": Schedule(warmup=5),
    }
    return TrainConfig(**{**defaults, "seed": seed, **options})


MEMBERS = [
    {"seed": 0},
    {"seed": 1, "lr": 5e-3},
    {"seed": 2, "weight_decay": 0.0, "clip": None},
    {"seed": 3, "clip": 0.1},
]


@pytest.mark.parametrize("scheme", ["pre_norm", "post_norm", "layer_scale", "attn_res", "mhc"])
def test_equal_to_separate_runs(tmp_path, scheme):
    configs = [config(**m) for m in MEMBERS]
    models = [model(c.seed, scheme) for c in configs]
    Ensemble(models, GROUND, configs, tmp_path / "all", quiet=True).run()
    for i, c in enumerate(configs):
        alone = model(c.seed, scheme)
        Trainer(alone, GROUND, c, tmp_path / f"{i}", quiet=True).run()
        one, many = (
            read_log(path / "log.jsonl", "train") for path in (tmp_path / f"{i}", tmp_path / f"all/member-{i}")
        )
        for a, b in zip(one, many, strict=True):
            assert a["lr"] == pytest.approx(b["lr"], rel=1e-6)
            assert a["loss"] == pytest.approx(b["loss"], abs=2e-5)
            assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_gradients_equal_to_the_last_digits():
    models = [model(s).double() for s in range(3)]
    batches = [GROUND.sample(4, 6, torch.Generator().manual_seed(s)) for s in range(3)]
    ensemble = Ensemble(models, GROUND, [config(s) for s in range(3)], "unused", quiet=True)
    together = Batch(*(torch.stack([getattr(b, key) for b in batches]) for key in ("tokens", "targets")))
    _, got = ensemble.gradients(together)
    for i, batch in enumerate(batches):
        loss = torch.nn.functional.cross_entropy(models[i](batch.tokens).flatten(0, 1), batch.targets.flatten())
        want = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(models[i].parameters()))])
        assert (got[i] - want).abs().max() < 1e-12


def test_one_member_diverges_and_the_others_do_not_notice(tmp_path):
    def members():
        models = [model(s) for s in range(3)]
        with torch.no_grad():
            models[1].embedding.weight[0, 0] = float("nan")
        return models

    broken = Ensemble(members(), GROUND, [config(s) for s in range(3)], tmp_path / "a", quiet=True).run()
    assert [s["status"] for s in broken] == ["finished", "diverged", "finished"]
    assert broken[1]["step"] == 1
    whole = Ensemble(
        [model(s) for s in range(3)], GROUND, [config(s) for s in range(3)], tmp_path / "b", quiet=True
    ).run()
    assert [broken[i]["loss"] for i in (0, 2)] == [whole[i]["loss"] for i in (0, 2)]
    assert json.loads((tmp_path / "a/member-1/summary.json").read_text())["status"] == "diverged"


def test_averages_of_a_member_that_diverges_end_with_it(tmp_path):
    """As in a separate run: what comes later does not move them."""
    rates = [{"lr": 1e-2}, {"lr": 30.0, "clip": None}]
    configs = [config(i, diverged_above=1.5, patience=2, **rate) for i, rate in enumerate(rates)]
    Ensemble([model(0), model(1)], GROUND, configs, tmp_path / "all", quiet=True).run()
    alone = Trainer(model(1), GROUND, configs[1], tmp_path / "alone", quiet=True)
    assert alone.run()["status"] == "diverged"
    ensemble = latest(tmp_path / "all/member-1/checkpoint").group("average")
    separate = alone.average.tensors()
    assert {key.split("/")[0] for key in ensemble} == {"ema", "bema"}
    for key, tensor in ensemble.items():
        torch.testing.assert_close(tensor, separate[key], rtol=1e-4, atol=1e-5)


def test_resume_is_exact(tmp_path):
    def ensemble(name):
        return Ensemble(
            [model(s) for s in range(2)], GROUND, [config(s) for s in range(2)], tmp_path / name, quiet=True
        )

    whole = ensemble("whole").run()
    cut = ensemble("cut")
    plain = cut._one

    def killed():
        if cut.step == 17:
            raise MemoryError
        plain()

    cut._one = killed
    with pytest.raises(MemoryError):
        cut.run()
    third = ensemble("cut")
    again_plain = third._one

    def interrupted():
        if third.step == 16:
            os.kill(os.getpid(), signal.SIGINT)
        again_plain()

    third._one = interrupted
    with pytest.raises(KeyboardInterrupt):
        third.run()
    assert (tmp_path / "cut/checkpoint/step-000000017").exists()
    again = ensemble("cut").run()
    assert [s["loss"] for s in again] == [s["loss"] for s in whole]
    logs = [(tmp_path / name / "member-0/log.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]


def test_evaluations_see_raw_ema_and_bema(tmp_path):
    configs = [config(s, average={"every": 1}) for s in range(2)]
    seen = Ensemble([model(s) for s in range(2)], GROUND, configs, tmp_path, quiet=True,
                    evaluate=lambda m: {"x": m.embedding.weight[0, 0].item()}).run()  # fmt: skip
    values = [seen[i]["weights"][kind]["x"] for i in range(2) for kind in ("raw", "ema", "bema")]
    assert len(set(values)) == 6


def test_the_choice_says_why():
    many = [model(s) for s in range(8)]
    assert choose(many, config()).how == "stacked"
    assert choose(many, config(batch=256)).how == "separate"
    assert "192 numbers" in choose(many, config()).why
    assert choose(many[:1], config()).how == "separate"
    assert "8" in choose(many[:3], config()).why
    assert "dropout" in choose([model(s, dropout=0.1) for s in range(8)], config()).why
    assert "after each step" in choose([model(s, "ngpt") for s in range(8)], config()).why


def test_bad_ensembles():
    with pytest.raises(ConfigError, match="0 models"):
        Ensemble([], GROUND, [], "unused")
    with pytest.raises(ConfigError, match="2 models need as many"):
        Ensemble([model(), model()], GROUND, [config()], "unused")
    with pytest.raises(ConfigError, match="one shape"):
        Ensemble([model(), model(bias=True)], GROUND, [config(), config()], "unused")
    with pytest.raises(ConfigError, match="one scheme"):
        Ensemble([model(scheme="post_norm"), model(scheme="sqrt_scaling")], GROUND, [config(), config()], "unused")
    with pytest.raises(ConfigError, match="share 'steps'"):
        Ensemble([model(), model()], GROUND, [config(), config(steps=9)], "unused")


def score(m):
    return {"first": float(next(m.parameters()).flatten()[0])}


def test_scores_on_the_way_and_a_pause_change_nothing(tmp_path):
    """Paused at a step and continued: the logs, with the scores on the way, are those of one go."""
    settings = [config(seed, evaluate_at=(5, 12)) for seed in range(2)]

    def made(folder):
        return Ensemble([model(s) for s in range(2)], GROUND, settings, tmp_path / folder, evaluate=score, quiet=True)

    whole = made("whole").run()
    assert made("parts").run(until=9) == []
    assert not (tmp_path / "parts" / "member-0" / "summary.json").exists()
    parts = made("parts").run()
    for i in range(2):
        logs = [read_log(tmp_path / name / f"member-{i}" / "log.jsonl") for name in ("whole", "parts")]
        assert logs[0] == logs[1]
        assert [r["step"] for r in logs[0] if r["kind"] == "evaluation"] == [5, 12]
        assert whole[i]["weights"] == parts[i]["weights"]


def test_muon_is_not_stacked():
    settings = [config(seed, optimizer="muon") for seed in range(9)]
    assert choose([model(0)] * 9, settings[0]).how == "separate"
    with pytest.raises(ConfigError, match="adamw"):
        Ensemble([model(0)], GROUND, settings[:1], "nowhere")
