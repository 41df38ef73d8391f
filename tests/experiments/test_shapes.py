import pytest

from normlab.errors import ConfigError
from normlab.experiments.shapes import GridRequest, known_schemes, round_3, run_name, seconds
from normlab.schemes.registry import families


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), (" 10 m ", 600), ("1.5h", 5400)])
def test_times(text, value):
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-5s", "1d", "1h30m"])
def test_what_is_no_time(text):
    with pytest.raises(ConfigError, match="written like 90s, 10m or 2h"):
        seconds(text)


def test_a_name_is_a_file_name_and_tells_runs_apart():
    name = run_name("block_attn_res(heads=2, blocks=4)", 12, round_3(0.0031622), 1)
    assert name == "block_attn_res-heads=2-blocks=4-l12-lr0.00316-s1"
    names = {
        run_name(s, d, lr, k) for s in ("pre_norm", "keel") for d in (1, 2) for lr in (1e-3, 1.01e-3) for k in (0, 1)
    }
    assert len(names) == 16


def test_schemes_are_spread_spelled_and_refused():
    assert known_schemes(("Pre-Norm", "multi-stream")) == ("pre_norm", *families()["multi-stream"])
    with pytest.raises(ConfigError, match="did you mean 'peri_norm'"):
        known_schemes(("peri_nrom",))
    with pytest.raises(ConfigError, match="numbers of layers, each at least 1"):
        GridRequest(depths=(4, 0))
