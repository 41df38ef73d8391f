"""Runs are found, followed and forgotten; half-written and damaged ones do no harm; the time left follows the speed."""

import pytest

from normlab.store import locked
from normlab.ui.feed import FolderFeed
from tests.ui.runs import add, layers, record, write


@pytest.fixture
def feed(tmp_path):
    write(tmp_path / "sweep" / "a", [record(10), record(20), layers(20)])
    write(tmp_path / "sweep" / "b", [record(100)], status="finished", scheme="post_norm")
    write(tmp_path / "sweep" / "c", [record(50)], status="diverged")
    write(tmp_path / "alone", [])
    return FolderFeed(tmp_path)


def look(feed, at):
    return feed.refresh(now=at)


def states(feed):
    return {name: run.state for name, run in feed.runs.items()}


def test_what_is_there(feed, tmp_path):
    look(feed, 0)
    assert states(feed) == {"sweep/a": "stopped", "sweep/b": "finished", "sweep/c": "diverged", "alone": "waiting"}
    assert feed.sentence() == "1 stopped, 1 waiting, 1 diverged, 1 finished."
    assert feed.runs["sweep/a"].facts.scheme == "pre_norm"
    assert feed.runs["sweep/a"].step == 20
    assert feed.left() is None, "nothing runs"


def test_what_is_new(feed, tmp_path):
    first = look(feed, 0)
    assert look(feed, 10) == first, "nothing changed"
    add(tmp_path / "sweep" / "a", [record(30)])
    write(tmp_path / "sweep" / "d", [record(1)])
    assert look(feed, 20) > first
    assert feed.runs["sweep/a"].step == 30
    assert "sweep/d" in feed.runs
    again = feed.revision
    (tmp_path / "alone" / "config.yaml").unlink()
    assert look(feed, 30) > again
    assert "alone" not in feed.runs


def test_time_left(feed, tmp_path):
    with locked(tmp_path / "sweep" / "a"):
        look(feed, 0)
        run = feed.runs["sweep/a"]
        assert run.state == "running"
        assert run.left == pytest.approx(8.0), "a tenth of a second a step, 80 steps left"
        assert feed.left() > 8.0, "another one waits"


def test_half_written_and_damaged(feed, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("model: {vocab")
    (tmp_path / "sweep" / "b" / "summary.json").write_text('{"status": "fini')
    (tmp_path / "sweep" / "a" / "failure.json").write_text('{"error": "no memory"}')
    look(feed, 0)
    assert states(feed)["new"] == "damaged"
    assert states(feed)["sweep/b"] == "damaged"
    assert (feed.runs["sweep/a"].state, feed.runs["sweep/a"].why) == ("failed", "no memory")
    write(tmp_path / "sweep" / "e", [])
    (tmp_path / "new" / "config.yaml").write_text((tmp_path / "sweep" / "e" / "config.yaml").read_text())
    look(feed, 10)
    assert states(feed)["new"] == "waiting", "it was whole a moment later"


def test_links_are_not_followed(tmp_path):
    write(tmp_path / "outside" / "run", [record(1)])
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    feed = FolderFeed(tmp_path / "inside")
    look(feed, 0)
    assert feed.runs == {}
    assert feed.sentence() == "No run has begun here yet."


def test_a_run_by_itself(tmp_path):
    write(tmp_path, [record(3)])
    feed = FolderFeed(tmp_path)
    look(feed, 0)
    assert list(feed.runs) == ["."]
