"""One thread and deterministic algorithms: uninitialised memory shows as NaN, and timings do not matter."""

import getpass
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if _instructions := os.environ.get("ATEN_CPU_CAPABILITY"):
    # The compiler's cache does not tell instruction sets apart: loops of 16 lanes, built anew with 8, read garbage.
    _cache = f"torchinductor_{getpass.getuser()}_{_instructions}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), _cache))

import pytest
import torch

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, or the one that CHROMIUM names, driven by Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """opened(path, width=..., scheme="dark"): a page from disk that is ready; `.trouble` lists errors and requests."""

    def load(path, *, width=1100, scheme="light"):
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab.trouble = []
        tab.on("console", lambda message: tab.trouble.append(message.text))
        tab.on("pageerror", lambda error: tab.trouble.append(str(error)))
        local = ("file:", "data:", "blob:")
        tab.on("request", lambda request: None if request.url.startswith(local) else tab.trouble.append(request.url))
        tab.goto(path.as_uri())
        tab.wait_for_function("document.documentElement.dataset.ready === 'yes'")
        return tab

    return load
