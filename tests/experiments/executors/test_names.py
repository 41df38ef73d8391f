import pytest

from normlab.errors import ConfigError
from normlab.experiments.executors.local import LocalExecutor
from normlab.experiments.executors.names import executor


def test_bad_executors():
    with pytest.raises(ConfigError, match="did you mean 'local'"):
        executor("locall")
    with pytest.raises(ConfigError, match="belongs to --executor ray"):
        executor("local", address="auto")
    with pytest.raises(ConfigError, match="threads >= 1"):
        LocalExecutor(threads=0)
