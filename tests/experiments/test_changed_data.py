"""A file that is edited during a sweep, or between two calls of it: never two texts in one comparison."""

import json

import pytest

from normlab.errors import InputError
from normlab.experiments.compare.analyse import analyse
from normlab.experiments.compare.arms import Arm
from normlab.experiments.compare.experiment import EXPERIMENT, run_of
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.executors.local import LocalExecutor
from normlab.experiments.executors.protocol import Outcome
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.stability.experiment import EXPERIMENT as STABILITY
from normlab.experiments.stability.request import StabilityRequest
from normlab.experiments.sweep import SweepError, read_all
from normlab.tasks import Text
from normlab.tasks.text import _splits, read_text
from tests.experiments.tiny import Here, alone, sweep_of

OLD, NEW = "to be or not to be " * 100, "the quick brown fox jumps " * 100
CHANGED = r"text.txt' has changed since the sweep in .* began.* restore the file, or give another --out"
SIZES = {"schemes": ("pre_norm",), "depths": (1,), "dim": 16, "heads": 2, "batch": 2, "length": 8}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(OLD)
    return path


def edit(path, content):
    """As another process will find it: what this one has read is forgotten."""
    path.write_text(content)
    read_text.cache_clear()
    _splits.cache_clear()


def request(path, **changes):
    measure = HeldOut(validations=1, curve_sequences=2, sequences=4, layers=(), prune=False)
    values = {
        **SIZES,
        "task": Text(path=path and str(path)),
        "tokens": 64,
        "lrs": (1e-3,),
        "seeds": 1,
        "measure": measure,
    }
    return CompareRequest(**{**values, **changes})


def compare(asked, sweep):
    return EXPERIMENT.carry_out(asked, sweep)


def test_a_comparison_is_not_continued_on_another_text(text, tmp_path):
    out = tmp_path / "sweep"
    compare(request(text), sweep_of(out))
    before = (out / "sweep.json").read_text()
    edit(text, NEW)
    with pytest.raises(InputError, match=CHANGED):
        compare(request(text, seeds=2), sweep_of(out))
    assert (out / "sweep.json").read_text() == before
    edit(text, OLD)
    assert len(compare(request(text, seeds=2), sweep_of(out)).cells) == 2


def test_nor_is_a_map(text, tmp_path):
    config = StabilityRequest(**SIZES, task=Text(path=str(text)), steps=20, warmups=(0,), lrs=(1e-3, 1e-2), factor=1e9)
    STABILITY.carry_out(config, sweep_of(tmp_path / "sweep"))
    edit(text, NEW)
    with pytest.raises(InputError, match=CHANGED):
        STABILITY.carry_out(config.replace(seeds=2), sweep_of(tmp_path / "sweep"))


def test_a_cell_that_starts_later_notices(text, tmp_path):
    class Edits(Here):
        """The file changes after the first phase, and cells of the next start in new processes."""

        def run(self, folders):
            try:
                yield from super().run(folders)
            except InputError as error:
                yield Outcome(folders[0], str(error))
            edit(text, NEW)

    with pytest.raises(SweepError, match=rf"'pre_norm-l1-lr0.001-s1' could not be made: .*{CHANGED}"):
        compare(request(text, seeds=2), sweep_of(tmp_path / "sweep", Edits()))


def test_a_new_worker_notices(text, tmp_path):
    out = tmp_path / "sweep"
    compare(request(text), sweep_of(out))
    edit(text, NEW)
    with LocalExecutor(workers=1) as local:
        sweep = sweep_of(out, local)
        sweep.run({"more": run_of(request(text), Arm("pre_norm", 1), lr=1e-3, seed=7, steps=4)}, what="more")
    with pytest.raises(SweepError, match=CHANGED):
        sweep.check()


def test_what_this_process_read_is_what_it_trains_on(text, tmp_path):
    out = tmp_path / "sweep"
    compare(request(text), sweep_of(out))
    text.write_text(NEW)
    grown = compare(request(text, seeds=2), sweep_of(out))  # from memory: the old text
    fresh = tmp_path / "fresh"
    edit(text, OLD)
    whole = compare(request(text, seeds=2), sweep_of(fresh))
    assert [c.loss for c in grown.cells] == [c.loss for c in whole.cells]


def test_folders_from_before_and_the_text_that_ships(text, tmp_path):
    out = tmp_path / "sweep"
    compare(request(text), sweep_of(out))
    body = json.loads((out / "sweep.json").read_text())
    assert list(body.pop("data")) == [str(text)]
    (out / "sweep.json").write_text(json.dumps(body))  # as older versions wrote it
    edit(text, OLD + "that is the question")
    compare(request(text, seeds=2), sweep_of(out))
    compare(request(None), sweep_of(tmp_path / "plays"))
    assert "data" not in json.loads((tmp_path / "plays" / "sweep.json").read_text())
    (config,) = (tmp_path / "plays").glob("*/config.yaml")
    assert "data" not in config.read_text()
    alone(config.parent)


def test_a_merged_report_does_not_pair_two_texts(text, tmp_path):
    compare(request(text), sweep_of(tmp_path / "a"))
    edit(text, NEW)
    compare(request(text, schemes=("pre_norm", "peri_norm")), sweep_of(tmp_path / "b"))
    result = analyse(read_all([tmp_path / "a", tmp_path / "b"]))
    assert sorted(len(setting.schemes) for setting in result.settings) == [1, 2]
    assert len(result.cells) == 3
    assert len(read_all([tmp_path / "b", tmp_path / "b"])) == 2  # a cell that is in two of them counts once
