"""What is shipped: a source archive without the big pages, from which the package can be built and used."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

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


def test_a_wheel_from_the_archive_works_in_a_clean_environment(archive, tmp_path):
    """Its own environment sees the dependencies of this one, but only the package that was built."""
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("normlab-*")
    script = f"import os; os.chdir({str(source)!r}); import hatchling.build as b; b.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "clean", with_pip=False)
    python = tmp_path / "clean" / "bin" / "python"
    (packages,) = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages)
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    script = "import normlab, torch; print(normlab.__file__); print(normlab.Transformer(normlab.TransformerConfig(vocab_size=5, dim=8, depth=2, heads=2, scheme='attn_res'))(torch.zeros(1, 3, dtype=torch.long)).shape)"  # noqa: E501
    done = subprocess.run([python, "-I", "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert str(packages) in done.stdout
    assert "torch.Size([1, 3, 5])" in done.stdout
