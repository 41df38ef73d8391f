"""An architecture and a scheme in the place of a model of ours."""

import pytest

from normlab.errors import ConfigError, UnsupportedError
from normlab.experiments.runs.config import RunConfig
from normlab.model import TransformerConfig
from normlab.surgery.backbone.config import BackboneConfig
from normlab.tasks import task
from normlab.training import TrainConfig

pytest.importorskip("transformers")
SIZE = {"vocab_size": 96, "dim": 64, "depth": 4, "heads": 4}


def kimi(scheme="block_attn_res(blocks=2)"):
    return BackboneConfig.sized("kimi_linear", scheme, **SIZE)


def test_a_round_trip_keeps_all_of_it():
    config = kimi()
    assert BackboneConfig.from_dict(config.to_dict()) == config
    assert config.replace(scheme="pre_norm").architecture == config.architecture
    run = RunConfig(model=config, task=task("tomita", number=4), train=TrainConfig(steps=10, schedule={"warmup": 1}))
    again = RunConfig.from_yaml(run.to_yaml())
    assert again == run
    assert isinstance(again.model, BackboneConfig)
    assert again.setting() == run.replace(model=kimi("pre_norm")).setting()


def test_its_shape():
    config = kimi()
    assert (config.name, config.dim, config.depth, config.heads, config.longest) == ("kimi_linear", 64, 4, 4, 2048)
    assert [site.kind for site in config.sites()] == ["attention", "ffn"] * 4
    assert config.frame().norm == "rmsnorm"
    assert config.tie_embeddings


def test_models_of_ours_are_read_as_before():
    run = RunConfig(model={"vocab_size": 96, "dim": 32, "depth": 2, "heads": 2}, task=task("tomita", number=4))
    assert isinstance(run.model, TransformerConfig)
    with pytest.raises(ConfigError, match=r"^model.haeds: unknown key of the model; did you mean 'heads'"):
        RunConfig(
            model={"vocab_size": 96, "dim": 32, "depth": 2, "heads": 2, "haeds": 2}, task=task("tomita", number=4)
        )
    with pytest.raises(ConfigError, match=r"model.architecture: it names no model_type"):
        RunConfig(model={"architecture": {}, "scheme": "pre_norm"}, task=task("tomita", number=4))


def test_schemes_that_reach_inside_branches_are_refused():
    kimi().check()
    with pytest.raises(UnsupportedError, match="ngpt reaches inside the branches"):
        kimi("ngpt").check()


def test_an_architecture_that_predicts_no_next_token():
    with pytest.raises(UnsupportedError, match="has no vit that predicts the next token"):
        BackboneConfig(architecture={"model_type": "vit"}, scheme="pre_norm").check()


def test_tasks_and_scores_that_a_backbone_cannot_take():
    with pytest.raises(
        ConfigError, match=r"'max_retrieval' brings its own embedding, and a backbone \(kimi_linear\) has one"
    ):
        RunConfig(model=kimi(), task=task("max_retrieval"))
    with pytest.raises(ConfigError, match=r"score.kind: a backbone"):
        RunConfig(model=kimi(), task=task("tomita", number=4), score={"kind": "by_length", "lengths": [8], "count": 4})
