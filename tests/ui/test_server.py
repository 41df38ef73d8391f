"""Who may ask, what is answered, and that nothing is written: the real application under starlette's test client."""

import json
import socket
import time

import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from normlab.errors import InputError
from normlab.ui.feed import LOOK, FolderFeed
from normlab.ui.server import application, serve
from tests.ui.runs import add, layers, record, write

TOKEN = "the-token"
HERE = "http://127.0.0.1:8123"
PATHS = ("/", "/state", "/run?id=a", "/plotly.js", "/nothing")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "a", [record(1), layers(1), record(2), layers(2)])
    write(tmp_path / "<b onclick=1>", [record(1)])
    return tmp_path


@pytest.fixture
def client(folder):
    return TestClient(application(FolderFeed(folder), token=TOKEN, port=8123), base_url=HERE)


def ask(client, path, **headers):
    sign = "&" if "?" in path else "?"
    return client.get(f"{path}{sign}token={TOKEN}", headers=headers)


@pytest.mark.parametrize("path", PATHS)
def test_no_token_or_a_wrong_one(client, path):
    assert client.get(path).status_code == 403
    sign = "&" if "?" in path else "?"
    for wrong in ("", "the-toke", "the-token2", f"x&token={TOKEN}"):
        assert client.get(f"{path}{sign}token={wrong}").status_code == 403, wrong


@pytest.mark.parametrize("path", PATHS)
def test_foreign_origins_and_hosts(client, path):
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8123"):
        assert ask(client, path, origin=origin).status_code == 403, origin
    for host in ("evil.example", "evil.example:8123", "127.0.0.1", "127.0.0.1:80"):
        assert ask(client, path, host=host).status_code == 403, host
    assert ask(client, path, **{"sec-fetch-site": "cross-site"}).status_code == 403


def test_the_own_origin_and_localhost(client):
    assert ask(client, "/state", origin=HERE).status_code == 200
    assert ask(client, "/state", host="localhost:8123").status_code == 200


def test_nothing_is_changed(client, folder):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}
    for path in PATHS:
        ask(client, path)
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert client.request(method, f"{path.split('?')[0]}?token={TOKEN}").status_code == 405
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))} == before


def test_state_and_what_is_new(client, folder):
    found = ask(client, "/state")
    body = found.json()
    assert {row["id"] for row in body["runs"]} == {"a", "<b onclick=1>"}
    assert found.headers["cache-control"] == "no-store"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert ask(client, f"/state?since={body['revision']}").status_code == 204
    add(folder / "a", [record(3)])
    time.sleep(LOOK + 0.1)
    newer = ask(client, f"/state?since={body['revision']}").json()
    assert next(row["step"] for row in newer["runs"] if row["id"] == "a") == 3


def test_a_run_by_its_name_only(client, folder):
    (folder.parent / "secret").mkdir(exist_ok=True)
    assert len(ask(client, "/run?id=a").json()["figures"]) == 4
    for name in ("../secret", "/etc", "a/../a", "nothing", ""):
        assert ask(client, f"/run?id={name}").status_code == 404, name


def test_the_page_is_escaped_and_asks_nobody_else(folder):
    nasty = folder / "<script>alert(1)</script>"
    nasty.mkdir(parents=True)
    client = TestClient(application(FolderFeed(nasty), token=TOKEN, port=8123), base_url=HERE)
    found = ask(client, "/")
    assert "<script>alert" not in found.text
    assert "&lt;script&gt;alert(1)" in found.text
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert "'unsafe-inline'" not in found.headers["content-security-policy"].split("script-src")[1].split(";")[0]
    assert "http://" not in found.text.replace(HERE, "")
    assert "https://" not in found.text
    script = ask(client, "/plotly.js")
    assert len(script.content) > 1_000_000, "plotly comes from the installed package"
    assert script.headers["content-type"].startswith("text/javascript")


def test_a_kill_and_a_half_line_between_two_looks(client, folder):
    ask(client, "/state")
    with open(folder / "a" / "log.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 3, "lo')
    time.sleep(LOOK + 0.1)
    rows = {row["id"]: row for row in ask(client, "/state").json()["runs"]}
    assert rows["a"]["step"] == 2
    assert json.dumps(rows, allow_nan=False)


def test_a_port_that_is_taken(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InputError, match="give another --port"):
            serve(tmp_path, port=other.getsockname()[1], ready=lambda _: None)
