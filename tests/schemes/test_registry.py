from typing import Literal

import pytest

import normlab as nl
from normlab.errors import ConfigError
from normlab.plugins import records
from normlab.schemes import SCHEMES, families, label, lookup, parse_scheme, register
from normlab.schemes.names import from_record


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


def test_a_class_that_is_defined_again_takes_the_place_of_the_first():
    """A cell of a notebook that is run twice."""

    def cell(scale):
        class Again(SCHEMES["pre_norm"]):
            name: Literal["again_norm"] = "again_norm"
            loudness: float = scale

        return register(Again)

    try:
        cell(1.0)
        second = cell(2.0)
        assert SCHEMES["again_norm"] is second
        assert nl.scheme("again_norm").loudness == 2.0
    finally:
        del SCHEMES["again_norm"]


def test_a_record_of_a_scheme_that_is_not_here_can_be_named_and_not_built():
    record = {"name": "lost_norm", "keep": 0.5, "external": {"module": "lost", "label": "lost_norm(keep=0.5)"}}
    with pytest.raises(
        ConfigError, match="unknown scheme 'lost_norm'; it comes from the module 'lost'; give --import lost"
    ):
        from_record(record)
    with records():
        lost = from_record(record)
        assert label(parse_scheme("lost_norm(keep=0.5)")) == label(lost) == "lost_norm(keep=0.5)"
        assert not hasattr(lost, "keep")
        assert nl.TransformerConfig(vocab_size=5, dim=4, depth=1, heads=1, scheme=lost).to_dict()["scheme"] == record
        with pytest.raises(ConfigError, match="did you mean"):
            parse_scheme("block_attn_res(block=4)")
    with pytest.raises(ConfigError, match="give --import lost"):
        lost.build(lost_frame())


def lost_frame():
    return nl.TransformerConfig(vocab_size=5, dim=4, depth=1, heads=1).frame()


def test_an_unknown_scheme_says_how_to_bring_ones_own():
    with pytest.raises(ConfigError, match="one of your own needs --import MODULE"):
        lookup("quite_another")
