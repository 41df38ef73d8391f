import pytest

from normlab.cli import run as cli
from normlab.cli.lengthgen import request_of


def call(*arguments):
    return cli([str(a) for a in arguments])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--train-length", "32"], "at most 31 distinct tokens"),
        (["--task", "set-complment"], "did you mean 'set_complement'"),
        (["--test-lengths", "8,x"], "whole numbers"),
        (["--test-lengths", "40"], "at most 31 distinct tokens"),
        (["--schemes", "pre_nrm"], "did you mean 'pre_norm'"),
        (["--fixes", "ssmx"], "did you mean 'ssmax'"),
        (["--seeds", "0"], "seeds"),
        (["--steps", "0"], "steps"),
        (["--positions", "rope"], "no positions by definition"),
        (["--preset", "tiny"], "'tiny' is not one of"),
        (["--set", "vocab"], "key=value"),
        (["--lr", "fast"], "--lr takes numbers"),
        (["--dim", "8,x"], "--dim takes whole numbers"),
        (["--depth", "3"], "one layer by definition"),
        (["--experiment", "width"], "did you mean 'widths'"),
        (["--task", "text", "--set", "path=/nowhere"], "cannot read the text file"),
        (["--preset", "two-layer", "--positions", "learned", "--max-length", "8", "--test-lengths", "16"],
         "16 is beyond the table of 8 learned positions"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(tmp_path, capsys, arguments, says):
    assert call("lengthgen", "--out", tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert not list(tmp_path.glob("*/log.jsonl"))


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "is empty"), (b"  \n", "is empty"), (b"a\0b", "NUL bytes"), (b"caf\xe9", "not UTF-8")]
)
def test_a_file_that_is_no_text_is_one_sentence(tmp_path, capsys, content, says):
    path = tmp_path / "given.txt"
    path.write_bytes(content)
    assert call("lengthgen", "--task", "text", "--set", f"path={path}", "--preset", "two-layer", "--out", tmp_path) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_what_is_typed_overrides_a_named_experiment():
    settings = {"task": "dyck", "seeds": 4, "preset": "two_layer"}
    made = request_of({"seeds": 2}, settings, set_=["depth=3"], test_set=["depth=5"])
    assert (made.seeds, made.preset) == (2, "two_layer")
    assert (made.task.depth, made.test_task.depth) == (3, 5)
    assert request_of({}, settings).test_task is None
