"""What imports code of a user's, and what does not. test_contributing.py compares such a scheme for real."""

import subprocess
import sys

import pytest

from normlab import plugins
from normlab.errors import InputError
from normlab.plugins import Origin, import_modules
from tests.own_schemes import MODULE, fresh, package


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with modules, and what is imported from it forgotten again."""
    known = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plugins, "_IMPORTED", {})
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_name_and_a_path_are_the_same_module(place):
    (place / "plain_one.py").write_text("import counted\ncounted.TIMES.append(1)\n")
    (place / "counted.py").write_text("TIMES = []\n")
    (by_path,) = import_modules(["./plain_one.py"])
    (by_name,) = import_modules(["plain_one"])
    assert by_path == by_name
    assert (by_path.written, by_path.module, by_path.path) == ("./plain_one.py", "plain_one", place / "plain_one.py")
    assert sys.modules["counted"].TIMES == [1]
    assert sys.path[-1] == str(place), "before the others, a file there could stand in for a module of a library's"


def test_a_module_of_a_package_is_sent_with_its_package(place):
    (place / "mine").mkdir()
    (place / "mine" / "__init__.py").touch()
    (place / "mine" / "inner.py").touch()
    (found,) = import_modules(["mine.inner"])
    assert (found.module, found.path) == ("mine.inner", place / "mine")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("my_schem", r"no module 'my_schem' .*did you mean 'my_scheme'\?.*the path of its \.py file"),
        ("./other.py", "does not exist; give the path of a .py file, or the name of a module"),
        ("text.txt/", "is no .py file"),
        ("a b", "takes the name of a module, or the path of a .py file; 'a b' is neither"),
        ("json.py", "another module is called 'json' already"),
        ("my-scheme.py", "cannot be a module's name; rename the file"),
        (
            "my_scheme",
            r"'my_scheme' could not be imported: ZeroDivisionError: division by zero \(.*my_scheme.py, line 2\)",
        ),
        ("leaves", "'leaves' could not be imported: SystemExit: 3"),
    ],
)
def test_what_cannot_be_imported_is_a_sentence(place, written, words):
    (place / "my_scheme.py").write_text("\n1 / 0\n")
    (place / "leaves.py").write_text("raise SystemExit(3)\n")
    for name in ("json.py", "my-scheme.py", "text.txt"):
        (place / name).touch()
    with pytest.raises(InputError, match=words):
        import_modules([written])


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"module": "my_scheme"}, "it comes from the module 'my_scheme'; give --import my_scheme"),
        ({"package": "their-schemes"}, "it comes from the package 'their-schemes'; install that"),
        ({"module": "__main__"}, "put it into a module of its own"),
        ({"module": "x\n\x1b[31m"}, None),
        ({"module": 3}, None),
        ("my_scheme", None),
        (None, None),
    ],
)
def test_a_record_becomes_words_and_nothing_else(record, words):
    origin = Origin.from_record(record)
    assert (origin is None) if words is None else words in origin.remedy


def test_an_installed_package_is_loaded_when_its_scheme_is_wanted(tmp_path):
    path, mark = [package(tmp_path)], tmp_path / "mark"
    for words in (["--help"], ["compare", "--help"], ["config", "scheme=peri_norm", "depth=1"]):
        done = fresh(*words, cwd=tmp_path, path=path, IMPORTED_MARK=str(mark))
        assert done.returncode == 0, done.stderr
        assert not mark.exists(), words
    done = fresh("config", "scheme=own_norm", "depth=1", cwd=tmp_path, path=path, IMPORTED_MARK=str(mark))
    assert done.returncode == 0, done.stderr
    assert "external:\n    package: own-plugin\n    label: own_norm" in done.stdout
    assert mark.exists()
    assert " own_norm " in fresh("schemes", cwd=tmp_path, path=path).stdout
    assert "own_norm" in fresh("schemes", "show", "own-norm", cwd=tmp_path, path=path).stdout


@pytest.mark.parametrize("source", ["1 / 0", MODULE.replace("own_norm", "pre_norm")])
def test_a_broken_package_is_named_and_breaks_nothing_else(source, tmp_path):
    path = [package(tmp_path, source)]
    sentence = "the plug-in 'own' of the package 'own-plugin' could not be loaded: "
    refused = fresh("config", "scheme=own_norm", cwd=tmp_path, path=path)
    assert refused.returncode == 2
    assert "unknown scheme 'own_norm'" in refused.stderr
    assert sentence in refused.stderr
    assert refused.stderr.count(sentence) == 1
    assert "Traceback" not in refused.stderr
    listed = fresh("schemes", cwd=tmp_path, path=path)
    assert listed.returncode == 0
    assert sentence in listed.stderr
    assert "pre_norm" in listed.stdout
    sound = fresh("config", "scheme=peri_norm", "depth=1", cwd=tmp_path, path=path)
    assert (sound.returncode, sound.stderr) == (0, "")


def test_the_flag_imports_and_a_file_does_not(tmp_path):
    """A configuration that names a module, and a module of that name beside it."""
    (tmp_path / "own_module.py").write_text(MODULE)
    mark = tmp_path / "mark"
    (tmp_path / "model.yaml").write_text(
        "vocab_size: 10\ndim: 8\ndepth: 1\nheads: 1\nscheme: {name: own_norm, external: {module: own_module}}\n"
    )
    refused = fresh("config", "model.yaml", cwd=tmp_path, IMPORTED_MARK=str(mark))
    assert refused.returncode == 2
    assert (
        "unknown scheme 'own_norm'; it comes from the module 'own_module'; give --import own_module" in refused.stderr
    )
    assert not mark.exists()
    for written in ("own_module", "./own_module.py"):
        done = fresh("config", "model.yaml", "--import", written, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"external:\n    module: {written}\n    label: own_norm" in done.stdout
    listed = fresh("schemes", "show", "own_norm", "--import", "own_module", cwd=tmp_path)
    assert "own_norm" in listed.stdout, listed.stderr


def test_looking_for_packages_loads_no_torch():
    code = "import sys; from normlab.plugins import anything; anything(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
