"""The timer itself; nothing here is compared with a clock."""

import gc

import pytest
import torch

from normlab.observe.timing import Quartiles, Times, interleave, one_thread, quartiles, ratio


def test_candidates_take_turns_in_every_place():
    order = []
    rounds = interleave({name: lambda name=name: order.append(name) for name in "abc"}, rounds=6, warmup=0)
    seen = ["".join(order[3 * i : 3 * i + 3]) for i in range(6)]
    assert seen == ["abc", "cba", "bca", "acb", "cab", "bac"]
    assert all(len(times.wall) == len(times.processor) == 6 for times in rounds.values())


def test_warm_up_and_repeats_are_not_rounds():
    calls = []
    found = interleave({"a": lambda: calls.append(1)}, rounds=3, warmup=2, repeat=4)
    assert len(calls) == 2 + 3 * 4
    assert len(found["a"].wall) == 3


def test_the_collector_is_left_as_it_was():
    def fails():
        raise RuntimeError("no step")

    with pytest.raises(RuntimeError):
        interleave({"a": fails}, rounds=1, warmup=0)
    assert gc.isenabled()


def test_ratios_are_taken_within_rounds_and_one_round_has_no_spread():
    assert ratio((1.0, 2.0, 30.0), (2.0, 4.0, 60.0)) == Quartiles(0.5, 0.5, 0.5)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == Quartiles(2.0, 3.0, 4.0)
    assert quartiles([7.0]) == Quartiles(7.0, 7.0, 7.0)
    assert Times((1.0,), (2.0,)).on("cpu") == (2.0,)
    assert Times((1.0,), (2.0,)).on("cuda:0") == (1.0,)


def test_one_thread_and_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
