import os

import pytest

from normlab.experiments.executors.protocol import Answer, cores


@pytest.mark.parametrize("answer", [Answer(), Answer("two\nlines, and \u2028 too"), Answer("again", final=False)])
def test_an_answer_is_one_line_and_comes_back(answer):
    line = answer.to_line()
    assert len(line.splitlines()) == 1
    assert Answer.from_line(line) == answer


def test_cores_are_those_that_this_process_may_use():
    assert 1 <= cores() <= (os.cpu_count() or 1)
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(before)})
            assert cores() == 1
        finally:
            os.sched_setaffinity(0, before)
        assert cores() == len(before)
