"""Experiments from Python: what cannot run leaves nothing. compare/ and stability/ have tests that train."""

import pytest

import normlab as nl
from normlab.errors import ConfigError
from normlab.experiments.protocol import Place


@pytest.mark.parametrize("call", [nl.compare, nl.stability, nl.lengthgen])
def test_an_unknown_argument_is_a_sentence_and_makes_no_folder(call, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'schemes'"):
        call(schems=["pre_norm"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("call", "request_", "words"),
    [
        (nl.compare, {"tokens": 2000, "dim": 64, "heads": 5}, "5 heads do not divide"),
        (nl.stability, {"steps": 20, "warmups": (90,)}, "90 steps of warm-up do not fit into 20"),
        (nl.lengthgen, {"train_length": 32}, "at most 31 distinct tokens"),
    ],
)
def test_what_cannot_be_built_leaves_no_sweep(call, request_, words, tmp_path):
    with pytest.raises(nl.NormlabError, match=words):
        call(**request_, out=tmp_path)
    assert not (tmp_path / "sweep.json").exists()


def test_a_place_says_where(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'local'"):
        nl.compare(tokens=2000, place=Place(tmp_path, executor="locl"))
