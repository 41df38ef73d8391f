"""`normlab watch` in a real browser: a point arrives within three seconds, 200 runs of 10,000 points load within two."""

import json
import threading
import time

import pytest

from normlab.ui.feed import FolderFeed
from tests.labels import trouble
from tests.ui.runs import add, config, layers, record, write

pytestmark = pytest.mark.slow
TOKEN = "test-token"


@pytest.fixture
def served():
    """served(folder): the address of a server over it, in this process."""
    import socket

    uvicorn = pytest.importorskip("uvicorn")
    from normlab.ui.server import application

    servers = []

    def start(folder):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        port = listener.getsockname()[1]
        app = application(FolderFeed(folder), token=TOKEN, port=port)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{port}/?token={TOKEN}"

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(timeout=10)


@pytest.fixture
def tab(browser):
    made = browser.new_page(viewport={"width": 1440, "height": 900})
    made.trouble = []
    made.on("console", lambda message: made.trouble.append(message.text))
    made.on("pageerror", lambda error: made.trouble.append(str(error)))
    made.on(
        "request",
        lambda r: None if r.url.startswith(("http://127.0.0.1:", "data:", "blob:")) else made.trouble.append(r.url),
    )
    yield made
    made.close()


def ready(tab, address):
    tab.goto(address)
    tab.wait_for_selector("html[data-ready=yes]", state="attached")


def until(tab, condition, seconds):
    """The page's policy forbids what `wait_for_function` does: to evaluate strings in it."""
    end = time.monotonic() + seconds
    while not tab.evaluate(condition):
        assert time.monotonic() < end, condition
        tab.wait_for_timeout(50)


def test_a_point_arrives(served, tab, tmp_path):
    write(tmp_path / "a", [record(1), layers(1), record(2), layers(2)])
    ready(tab, served(tmp_path))
    assert tab.locator("tr[data-run='a'] td").nth(2).inner_text() == "2/100"
    begun = time.monotonic()
    add(tmp_path / "a", [record(3, 1.25), record(4, 1.0)])
    until(tab, "document.querySelector('.plot').data[0].x.at(-1) === 4", 3)
    assert time.monotonic() - begun < 3
    assert tab.locator("tr[data-run='a'] td").nth(2).inner_text() == "4/100"
    tab.locator("tr[data-run='a'] button").focus()
    tab.keyboard.press("Enter")
    until(tab, "document.querySelectorAll('#one .plot svg.main-svg').length >= 4", 30)
    assert tab.locator("#one .heatmaplayer image").count() == 2
    assert trouble(tab) == []
    assert tab.trouble == []


def test_names_are_text(served, tab, tmp_path):
    write(tmp_path / "<img src=x onerror=document.title='bad'>", [record(1)])
    ready(tab, served(tmp_path))
    assert tab.locator("tr[data-run] button").inner_text().startswith("<img")
    assert tab.locator("img").count() == 0
    assert tab.title() != "bad"
    assert tab.trouble == []


def test_many_runs_load_at_once(served, tab, tmp_path):
    text = "".join(json.dumps(record(step, 3.0 / step)) + "\n" for step in range(1, 10_001))
    yaml = config(steps=10_000).to_yaml()
    for number in range(200):
        folder = tmp_path / f"run{number:03}"
        folder.mkdir()
        (folder / "config.yaml").write_text(yaml)
        (folder / "log.jsonl").write_text(text)
    address = served(tmp_path)
    inside = tab.context.new_cdp_session(tab)
    inside.send("Performance.enable", {"timeDomain": "threadTicks"})
    begun, spent = time.monotonic(), time.process_time()
    ready(tab, address)
    took, spent = time.monotonic() - begun, time.process_time() - spent
    page = {each["name"]: each["value"] for each in inside.send("Performance.getMetrics")["metrics"]}["ThreadTime"]
    assert tab.locator("tr[data-run]").count() == 200
    drawn = tab.evaluate("document.querySelector('.plot').data.map(t => [t.runs.length, t.text.length, t.x.length])")
    assert sum(runs for runs, _, _ in drawn) == 200
    assert all(named == points for _, named, points in drawn), "hovering names the run"
    print(f"200 runs of 10,000 points: {took:.2f} s; processor: server {spent:.2f} s, page {page:.2f} s")
    assert spent + page < 2, "processor time: the wall clock is the machine's business"


def test_dark_and_on_a_phone(served, browser, tmp_path):
    write(tmp_path / "a", [record(1), layers(1), record(2), layers(2)])
    tab = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    ready(tab, served(tmp_path))
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert trouble(tab) == []
    tab.close()
