import pytest

from normlab.errors import ConfigError
from normlab.numbers import real_numbers, whole_numbers


def test_numbers_are_read_in_order():
    assert whole_numbers("8, 2,4,", option="--depths") == (8, 2, 4)
    assert real_numbers("1e-3,.5, 2", option="--lrs") == (1e-3, 0.5, 2.0)
    assert whole_numbers(" ", option="--depths") == ()


@pytest.mark.parametrize("text", ["two", "2;4", "1.5", "1e3"])
def test_what_is_no_whole_number(text):
    with pytest.raises(ConfigError, match=r"--depths takes whole numbers.*2,4,8"):
        whole_numbers(text, option="--depths")


@pytest.mark.parametrize("text", ["fast", "1,nan", "inf", "1 2"])
def test_what_is_no_number(text):
    with pytest.raises(ConfigError, match="--lrs takes numbers"):
        real_numbers(text, option="--lrs")
