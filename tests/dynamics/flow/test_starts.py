import pytest

from normlab.dynamics import simulate


def test_text_puts_equal_words_at_one_point():
    run = simulate("post", n=40, d=32, beta=1.0, init="text", keep_tokens=True, samples=2, time=0.1)
    start = run.tokens[0, 0, 0]
    assert start[0] == pytest.approx(start[7])  # "a" and "a"
    assert run.tokens.shape == (1, 1, 2, 40, 32)
