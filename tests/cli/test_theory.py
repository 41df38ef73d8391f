"""normlab theory: every file `_theory_*.py` is a subcommand."""

from pathlib import Path

import normlab.cli
from normlab.cli import run


def test_every_file_beside_it_is_a_subcommand(capsys):
    files = Path(normlab.cli.__file__).parent.glob("_theory_*.py")
    names = [path.stem.removeprefix("_theory_").replace("_", "-") for path in files]
    assert len(names) >= 3
    assert run(["theory", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)


def test_an_unknown_subcommand_is_named(capsys):
    assert run(["theory", "mean-feild"]) == 2
    assert "mean-feild" in capsys.readouterr().err
