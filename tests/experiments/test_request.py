"""Requests: tasks by name, by file and by options; nothing imports torch before it is needed."""

import subprocess
import sys

import pytest

from normlab.errors import ConfigError, InputError
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.request import assignments, task_of, task_text
from normlab.tasks import Text, task


@pytest.mark.parametrize("made", [Text(), task("dyck", pairs=2, depth=4), task("set_complement", targets="exact")])
def test_a_task_is_written_as_it_is_read(made):
    assert task_of(task_text(made)) == made


def test_files_and_mistakes(tmp_path):
    path = tmp_path / "given.txt"
    path.write_text("to be or not to be " * 20)
    found = task_of(str(path))
    assert found == Text(path=str(path))
    assert task_text(found) == str(path)
    with pytest.raises(InputError, match="does not exist"):
        task_of("nowhere.txt")
    with pytest.raises(ConfigError, match="did you mean 'dyck'"):
        task_of("dykc")
    with pytest.raises(ConfigError, match="takes key=value"):
        assignments(["pairs"], source="--set")


def test_a_request_takes_a_task_in_any_form():
    forms = ("dyck(pairs=2)", {"task": "dyck", "pairs": 2}, task("dyck", pairs=2))
    assert len({CompareRequest(task=form).to_json() for form in forms}) == 1
    with pytest.raises(ConfigError, match="a task is a name"):
        CompareRequest(task=3)


def test_declaring_a_request_does_not_import_torch():
    code = (
        "import sys; import normlab.experiments.compare.request, normlab.experiments.stability.request\n"
        "import normlab.experiments.lengthgen.request, normlab.cli; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
