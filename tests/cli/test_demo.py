"""`normlab demo` at a tiny size: every stage leaves its page, stages can be left out, and it goes on."""

import json

import pytest

from normlab.cli import run
from normlab.experiments.demo import settings as module
from normlab.experiments.demo import stages
from normlab.experiments.demo.settings import settings
from normlab.experiments.executors.here import HereExecutor


@pytest.fixture
def tiny(monkeypatch):
    small = settings(schemes=("pre_norm", "post_norm", "block_attn_res"), depth=2, dim=16, steps=12)
    monkeypatch.setattr(module, "settings", lambda: small)
    monkeypatch.setattr(
        stages, "by_name", lambda *_, **__: HereExecutor()
    )  # a process of its own takes seconds to begin
    return small


def test_the_whole_story_and_again(tiny, tmp_path, capsys):
    out = tmp_path / "demo"
    assert run(["demo", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for words in ("[1/3]", "[2/3]", "[3/3]", "At initialisation", "held-out loss", "took: atlas"):
        assert words in said, words
    assert "page: " in said
    assert said.replace("\n", "").endswith("report.html")
    assert (out / "atlas.html").exists()
    first = (out / "training" / "pre_norm-l2-lr0.01-s0" / "summary.json").stat().st_mtime_ns
    assert run(["demo", "--out", str(out), "--skip", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["tuned"] is False
    assert "losses" not in answer
    trained = [(run["scheme"], run["warmup"]) for run in answer["runs"]]
    assert trained == [(s, steps) for s in ("pre_norm", "post_norm", "block_attn_res") for steps in (0, 6)]
    assert not any(
        word in " ".join(answer["answer"]) for word in ("lower", "lowest", "best", "better than pre", "worse")
    )
    assert "an illustration, not a comparison" in " ".join(answer["answer"])
    assert "an illustration, not a comparison" in (out / "report.html").read_text()
    assert (out / "training" / "pre_norm-l2-lr0.01-s0" / "summary.json").stat().st_mtime_ns == first, (
        "nothing is made again"
    )


def test_everything_skipped_still_ends_with_a_page(tiny, tmp_path, capsys):
    assert run(["demo", "--out", str(tmp_path), "--skip", "atlas,training,fault"]) == 0
    assert (tmp_path / "report.html").exists()
    assert capsys.readouterr().out.count(": skipped\n") == 3


def test_an_unknown_stage(capsys, tmp_path):
    assert run(["demo", "--skip", "atlass", "--out", str(tmp_path)]) == 2
    assert "did you mean 'atlas'" in capsys.readouterr().err
