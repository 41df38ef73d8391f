"""Experiments from Python: what cannot run leaves nothing. compare/ and stability/ have tests that train."""

import pytest

import normlab as nl
from normlab.errors import ConfigError
from normlab.experiments.protocol import Place
from tests.own_schemes import MODULE, fresh


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


SMALL = {"dim": 8, "heads": 1, "depths": [1], "length": 8, "batch": 2, "tokens": 64, "lrs": [1e-3], "seeds": 1}
OWN = """
import sys
import normlab as nl
from normlab.experiments.protocol import Place
if sys.argv[1] == "registered":
    import own_module
imports = "own_module" if sys.argv[1] == "named" else []
try:
    found = nl.compare(schemes=["pre_norm", "own_norm"], imports=imports, place=Place("out", workers=1, quiet=True), **%r)
except nl.NormlabError as error:
    print(error)
else:
    print({row.scheme: row.mean for row in found.settings[0].schemes})
"""


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("unknown", "unknown scheme 'own_norm'"),
        ("registered", "workers do not know it: it comes from the module 'own_module'; give --import own_module"),
        ("named", "'own_norm': "),
    ],
)
def test_a_scheme_of_ones_own_is_imported_by_the_workers_too(how, words, tmp_path):
    (tmp_path / "own_module.py").write_text(MODULE)
    done = fresh(how, cwd=tmp_path, path=[tmp_path], code=OWN % SMALL)
    assert words in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "out").exists() == (how == "named")
