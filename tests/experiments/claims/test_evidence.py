import json
from dataclasses import replace

import pytest

from normlab.errors import InputError
from normlab.experiments.claims.evidence import Evidence, curve, number, read_evidence


def sample():
    loss = number("loss", [1.0, float("nan")], "pre_norm")
    tv = curve("tv", [1, 2], [[0.1, 0.2]], axis="length", exact=True)
    return Evidence(
        "000-00", (loss, tv), (0, 1), settings={"d": 64}, criteria={"000-00": "below 2"},
        command="normlab claims run 000-00", commit="abc", version="0.1.0", seconds=3.0,
    )  # fmt: skip


def test_a_file_holds_all_of_it(tmp_path):
    path = sample().write(tmp_path)
    again = read_evidence(path)
    assert again.find("tv") == sample().find("tv")
    assert again.settings == {"d": 64}
    assert again.criteria == {"000-00": "below 2"}
    assert again.seconds_per_seed == 1.5
    first, second = again.find("loss", "pre_norm").column()
    assert first == 1.0
    assert second != second, "what is no number stays none"


def test_bad_files(tmp_path):
    path = sample().write(tmp_path)
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "schema": 99}))
    with pytest.raises(InputError, match=r"from another version \(schema 99.*measure it again"):
        read_evidence(path)
    path.write_text(json.dumps({**body, "measurements": [{"metric": "loss"}]}))
    with pytest.raises(InputError, match="damaged"):
        read_evidence(path)
    path.write_text("{")
    with pytest.raises(InputError, match="damaged"):
        read_evidence(path)


def test_questions_that_it_cannot_answer():
    with pytest.raises(InputError, match="unknown measurement 'lss of pre_norm'; did you mean 'loss of pre_norm'"):
        sample().find("lss", "pre_norm")
    with pytest.raises(InputError, match="say at which"):
        sample().find("tv").column()
    with pytest.raises(InputError, match="not taken at length 7"):
        sample().find("tv").column(7.0)
    with pytest.raises(InputError, match="every seed needs 2 values"):
        curve("tv", [1, 2], [[0.1]], axis="length")


def test_more_seeds_of_the_same_experiment_are_one_more_look(tmp_path):
    before = sample()
    more = replace(before, seeds=(0, 1, 2))
    assert more.after(None).looks == before.after(before).looks == 1
    assert more.after(before).looks == 2
    assert more.after(replace(before, looks=2)).looks == 3
    assert replace(more, settings={"d": 65}).after(before).looks == 1, "another experiment"
    assert replace(more, seeds=(5, 6, 7)).after(before).looks == 1, "seeds that nobody had seen"
    assert replace(before, seeds=(0,)).after(replace(before, looks=3)).looks == 3, "fewer of them are no fresh ones"
    assert read_evidence(more.after(before).write(tmp_path)).looks == 2
