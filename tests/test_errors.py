import pytest

from normlab.errors import (
    ConfigError,
    DamagedError,
    InputError,
    MissingDependencyError,
    NormlabError,
    canonical,
    nearest,
    require,
    unknown,
)


def test_one_fault_is_a_sentence_and_several_are_numbered():
    assert str(ConfigError(faults=[("model.depth", "too small")])) == "model.depth: too small"
    both = ConfigError(faults=[("depth", "too small"), ("", "no scheme")])
    assert str(both) == "(1) depth: too small; (2) no scheme"
    assert both.faults == (("depth", "too small"), ("", "no scheme"))


def test_names_forgive_dashes_and_case_and_the_nearest_is_given_as_it_is_spelled():
    assert canonical(" Pre-Norm ") == "pre_norm"
    assert nearest("PRE-NROM", ["post_norm", "pre_norm"]) == "pre_norm"
    assert nearest("zzz", ["post_norm"]) is None


def test_the_sentence_for_an_unknown_name():
    found = unknown("scheme", "peri", ["pre_norm", "peri_norm"], hint="see the list")
    assert found == "unknown scheme 'peri'; did you mean 'peri_norm'? (valid: peri_norm, pre_norm; see the list)"
    assert "(valid: 20 names)" in unknown("number", "zzz", map(str, range(20)))


def test_a_missing_package_says_how_to_install_it():
    with pytest.raises(MissingDependencyError, match=r"needs the package 'absent_package'.*normlab\[extra_name\]'"):
        require("absent_package.inner", extra="extra_name", purpose="this test")
    assert require("json.decoder", extra="none", purpose="this test").JSONDecoder


def test_one_tree_that_pythons_own_handlers_catch_too():
    for kind, plain in ((ConfigError, ValueError), (InputError, ValueError), (DamagedError, InputError)):
        assert issubclass(kind, NormlabError)
        assert issubclass(kind, plain)
