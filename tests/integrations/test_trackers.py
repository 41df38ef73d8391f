"""Values reach the real trackers: wandb offline, trackio on its own files. Skipped where they are not installed."""

import os
import sys

import pytest

from normlab.integrations import trackers

VALUES = {"stream/mean/norm": 1.5, "gradient/layer_0/norm": 0.25}
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="normlab", mode="offline", dir=tmp_path)
    sink = trackers.wandb()
    sink(0, VALUES)
    sink(50, {**VALUES, "stream/mean/norm": 2.5})
    assert run.step == 50
    sink(100, VALUES)  # wandb writes a step when the next one begins
    assert run.summary["stream/mean/norm"] == 2.5
    folder = run.dir
    run.finish()
    stored = list(os.scandir(os.path.dirname(folder)))
    assert any(file.name.endswith(".wandb") and file.stat().st_size > 0 for file in stored)


def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    trackio = pytest.importorskip("trackio")
    trackio.init(project="normlab", name="run", embed=False)
    sink = trackers.trackio()
    sink(0, VALUES)
    sink(50, {**VALUES, "stream/mean/norm": 2.5})
    trackio.finish()
    from trackio.sqlite_storage import SQLiteStorage

    logs = [row for row in SQLiteStorage.get_logs("normlab", "run") if "stream/mean/norm" in row]
    assert [(row["step"], row["stream/mean/norm"]) for row in logs] == [(0, 1.5), (50, 2.5)]


def test_a_tracker_that_is_missing_says_how_to_install_it(monkeypatch):

    from normlab.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match="logging to wandb needs the package 'wandb'"):
        trackers.wandb()
