"""What is known to fail before a folder is made. tests/training/test_distributed.py has real processes."""

import pytest

from normlab.errors import ConfigError, InputError
from normlab.experiments.runs.distributed import check
from normlab.tasks import task
from tests.experiments.tiny import tiny


def test_a_batch_is_shared_evenly(tmp_path):
    check(tiny(), tmp_path, processes=4)
    with pytest.raises(ConfigError, match="4 sequences do not divide among 3 processes; take a multiple of 3"):
        check(tiny(), tmp_path, processes=3)


def test_missing_data_is_said_before_anything_is_made(tmp_path):
    config = tiny()
    lost = config.replace(task=task("text", path=str(tmp_path / "none")), model=config.model.replace(vocab_size=256))
    with pytest.raises(InputError, match="cannot read the text file"):
        check(lost, tmp_path / "run")
    assert not (tmp_path / "run").exists()
