"""The built site in a real browser: nothing is fetched, nothing is wider than the screen, nothing complains."""

import subprocess
import sys

import pytest

from tests.printed import ROOT

PAGES = (
    "index", "choose", "schemes/index", "schemes/mhc", "verdicts/index", "verdicts/massive_activations", "claims/ledger",
    "claims/000", "results/README", "diagnose/README", "diagnose/gallery", "reference/schemes", "tutorials/diagnose",
)  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site():
    """As `make docs` makes it, but for the tutorials, which take their time there."""
    subprocess.run([sys.executable, "-m", "tools.site", "--no-run"], check=True, cwd=ROOT)
    return ROOT / "build" / "site"


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_site(name, width, site, browser):
    page = browser.new_page(viewport={"width": width, "height": 844})
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    index = site / f"{name}.html"
    page.goto((index if index.exists() else index.with_name("index.html")).as_uri())
    page.wait_for_timeout(200)
    assert not [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    assert not errors
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    page.close()
