import json
import math
import threading

from normlab.report import bar, progress, sparkline, table
from normlab.report.terminal import finite, show


def test_bad_numbers_become_null():
    assert finite({"a": [math.nan, (1.0, math.inf)], 2: "x"}) == {"a": [None, [1.0, None]], "2": "x"}
    json.dumps(finite([math.nan]), allow_nan=False)


def test_terminal_pieces():
    assert sparkline([0, 1, 2, 3]) == "▁▃▆█"
    assert sparkline([1, 10, 100], log=True) == "▁▄█" or len(sparkline([1, 10, 100], log=True)) == 3
    assert sparkline([math.nan, 1.0]) == " ▁"
    assert sparkline([]) == ""
    assert bar(0.5, 1, width=4) == "██"
    assert bar(math.nan, 1) == ""
    assert [show(v) for v in (None, True, 1.23456, 1e-9, 3, float("nan"))] == ["-", "yes", "1.235", "1e-09", "3", "nan"]
    assert table([{"a": 1, "b": "x"}]).row_count == 1
    assert list(progress([1, 2], what="x")) == [1, 2]
    assert list(progress(iter([1, 2]), what="x", quiet=True)) == [1, 2]


def test_meter_weighs_work_and_says_what_is_left(capsys, monkeypatch):
    from normlab.report import terminal

    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    done = iter([10.0, 30.0, 60.0])
    seen = threading.Event()

    def so_far():
        value = next(done, None)
        if value is None:
            seen.set()
        return 60.0 if value is None else value

    with terminal.meter("tuning", total=110.0, done=so_far, every=0.001):
        assert seen.wait(10)
    said = capsys.readouterr().err.splitlines()
    # 20 of 100 in 10 s leave 80, at 2 a second; what was there at the start (10) does not count as speed
    assert said[0] == "tuning: 27 %, about 40 s left"
    assert said[1] == "tuning: 54 %, about 20 s left"
    assert all("54 %" in line for line in said[2:]), "nothing new is said once a minute at most"
    assert len(said) <= 2 + next(clock) // 60
    with terminal.meter("tuning", total=1.0, done=lambda: 1 / 0, quiet=True):
        pass
    assert capsys.readouterr().err == ""
