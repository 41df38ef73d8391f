import math

import pytest
import torch

from normlab.errors import ConfigError
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import load, prepare
from normlab.model import Transformer, TransformerConfig
from normlab.tasks import task
from normlab.tasks.max_retrieval import ItemEmbedding
from tests.experiments.tiny import tiny


def test_config_round_trip(tmp_path):
    config = tiny("block_attn_res")
    folder = prepare(tmp_path / "a", config)
    assert load(folder) == config
    assert prepare(folder, config) == folder


def test_vocabulary_too_small():
    config = tiny()
    with pytest.raises(ConfigError, match="is less than the"):
        RunConfig(model=config.model.replace(vocab_size=1), task=config.task)


def test_an_own_embedding_takes_the_place_of_the_table(tmp_path):
    job = task("max_retrieval", classes=3)
    tied = TransformerConfig(vocab_size=3, dim=16, depth=2, heads=2)
    with pytest.raises(ConfigError, match="this must be false"):
        RunConfig(model=tied, task=job)
    with pytest.raises(ConfigError, match="tie_embeddings"):
        Transformer(tied).replace_embedding_(job.embedding(16))
    free = tied.replace(tie_embeddings=False)
    model = RunConfig(model=free, task=job).build()
    assert isinstance(model.embedding, ItemEmbedding)
    assert model(job.inputs(2, 5, torch.Generator().manual_seed(0))).shape == (2, 5, 3)
    assert model.num_parameters() == Transformer(free).num_parameters() + 16  # the row of the priority
    assert model.flops_per_token(8) == Transformer(free).flops_per_token(8)
    unit = RunConfig(model=free.replace(scheme="ngpt"), task=job).build().embedding.weight
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(4))


def test_validation_curve_has_the_start_of_the_decay():
    config = tiny(steps=30)
    assert 15 in config.validation_steps()
    assert max(config.validation_steps()) == 30
    assert config.layer_steps() == {0, 15, 30}
    assert math.isclose(config.train.schedule.factor(15, 30), 1.0)
