"""The first screen and the page of a run, as plain values; a scheme has its colour here too."""

import json

from normlab.report.colours import scheme_colour
from normlab.ui import view
from normlab.ui.feed import FolderFeed
from tests.ui.runs import layers, record, write

NASTY = "<img src=x onerror=alert(1)>"


def test_the_first_screen(tmp_path):
    write(tmp_path / "a", [record(step) for step in range(1, 40)] + [{"kind": "validation", "step": 39, "loss": 1.5}])
    write(tmp_path / NASTY, [record(1, None)], scheme="post_norm")
    feed = FolderFeed(tmp_path)
    feed.refresh()
    found = view.state(feed)
    json.dumps(found, allow_nan=False)
    rows = {row["id"]: row for row in found["runs"]}
    assert rows["a"]["held_out"] == 1.5
    assert rows["a"]["steps"] == 100
    lines = {trace["name"]: trace for trace in found["figures"][0]["data"] if trace["xaxis"] == "x"}
    assert lines["a"]["line"]["color"] == scheme_colour("pre_norm")
    assert lines["a"]["x"][-1] == 39
    assert NASTY not in lines, "plotly reads some markup in names"
    assert "&lt;img src=x onerror=alert(1)&gt;" in lines


def test_many_runs_share_the_points(tmp_path):
    for number in range(30):
        write(tmp_path / f"r{number}", [])
    feed, now = FolderFeed(tmp_path), 0
    while now == 0 or any(run.facts is None for run in feed.runs.values()):  # on a busy machine: not all in one look
        now += 10
        feed.refresh(now=now)
    records = [run.log for run in feed.runs.values()]
    for log in records:
        log.training = [view_record(step) for step in range(2000)]
    drawn, _ = view.curves(list(feed.runs.values()))
    points = sum(len(trace["x"]) for trace in drawn["data"])
    assert points <= view.POINTS
    (joined,) = drawn["data"]  # one scheme: one line, with a gap behind each run
    assert joined["x"][-2:] == [1999, None]
    assert joined["name"] == "pre_norm"
    assert len(joined["runs"]) == 30
    assert sum(joined["counts"]) == len(joined["x"]), "the page names the run of every point"


def view_record(step):
    from normlab.experiments.runs.records import TrainRecord

    return TrainRecord(step, 1.0, 1.0)


def test_one_run_with_its_layers(tmp_path):
    write(tmp_path / "a", [record(1), layers(1), record(2, 50.0), layers(2), record(3)])
    feed = FolderFeed(tmp_path)
    feed.refresh()
    found = view.one(feed.runs["a"])
    captions = [figure["caption"] for figure in found["figures"]]
    assert len(captions) == 4
    assert 50.0 in found["figures"][0]["data"][0]["y"], "no spike is left out"
    heat = found["figures"][1]["data"][0]
    assert heat["type"] == "heatmap"
    assert len(heat["z"]) == 5
    assert {trace["name"] for trace in found["figures"][3]["data"]} == {"attention", "FFN", "gradient"}
