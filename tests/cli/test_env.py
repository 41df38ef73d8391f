import json

import normlab
from normlab.cli import run


def test_what_is_here(capsys, monkeypatch):
    assert run(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["normlab"] == normlab.__version__
    assert found["extra hf"] == "installed"
    monkeypatch.setenv("NORMLAB_KERNELS", "off")
    assert run(["env"]) == 0
    assert "off: NORMLAB_KERNELS is 'off'" in capsys.readouterr().out


def test_no_compiler_is_said(capsys, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("NORMLAB_KERNELS", "on")
    assert run(["env", "--json"]) == 0
    assert "no C compiler" in json.loads(capsys.readouterr().out)["kernels"]
