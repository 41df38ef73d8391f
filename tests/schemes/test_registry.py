from typing import Literal

import pytest

import normlab as nl
from normlab.errors import ConfigError
from normlab.schemes import SCHEMES, families, lookup, register


def test_names_forgive_dashes_and_case_and_faults_are_told():
    assert lookup("Pre-Norm") is SCHEMES["pre_norm"]
    with pytest.raises(ConfigError, match=r"did you mean 'peri_norm'.*`normlab schemes` lists them"):
        lookup("peri_nrom")
    with pytest.raises(ConfigError, match="named by a text"):
        lookup(3)


def test_a_name_is_given_once_and_in_one_spelling():
    class Second(SCHEMES["ngpt"]):
        pass

    class Shouted(SCHEMES["ngpt"]):
        name: Literal["N-GPT"] = "N-GPT"

    before = dict(SCHEMES)
    with pytest.raises(ConfigError, match="'ngpt' is registered already: Ngpt"):
        register(Second)
    with pytest.raises(ConfigError, match="lower-case default with underscores, not 'N-GPT'"):
        register(Shouted)
    assert register(SCHEMES["ngpt"]) is SCHEMES["ngpt"]  # the same one again is no fault
    assert before == SCHEMES


def test_families_share_out_the_registry():
    found = [name for names in families().values() for name in names]
    assert sorted(found) == sorted(SCHEMES)
    assert len(found) == len(set(found))
    assert all(nl.scheme(name).card.family == family for family, names in families().items() for name in names)
