import pytest

from normlab.errors import InputError
from normlab.experiments.compare.result import Comparison
from normlab.experiments.protocol import KINDS, experiment, of_folders
from normlab.experiments.sweep import FORMAT, SweepFile
from tests.experiments.compare.rows import BASE, answered, row


def folder(path, kind):
    path.mkdir()
    SweepFile(FORMAT, kind, {}).write(path)
    return path


def test_every_kind_is_an_experiment_of_requests_of_that_kind():
    found = [experiment(kind) for kind in KINDS]
    assert [one.request.kind for one in found] == list(KINDS)
    assert len({one.file for one in found}) == len(KINDS)  # two in one folder would overwrite each other
    with pytest.raises(InputError, match="no experiment of this normlab is called 'comparison'"):
        experiment("comparison")


def test_folders_say_their_experiment_and_kinds_do_not_merge(tmp_path):
    one, other = folder(tmp_path / "a", "compare"), folder(tmp_path / "b", "stability")
    assert of_folders([one, one]) is experiment("compare")
    with pytest.raises(InputError, match="do not merge: compare, stability"):
        of_folders([one, other])


def test_a_result_is_written_in_every_form(tmp_path):
    result = Comparison(["a note"], [answered(row("pre_norm", BASE))], [])
    page = experiment("compare").write(result, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "comparison.json", "tables.md", "cells.csv"}
    assert "a note" in page.read_text()
    assert "a note" in (tmp_path / "tables.md").read_text()
