"""The search on made-up edges, and small maps for real."""

import json

import pytest

from normlab.experiments.stability.analyse import (
    analyse,
    bracket,
)
from normlab.experiments.stability.experiment import EXPERIMENT, next_rate
from normlab.experiments.stability.page import build
from normlab.experiments.stability.request import StabilityRequest
from normlab.experiments.sweep import read_runs
from normlab.tasks import task
from tests.experiments.tiny import sweep_of


def stability(asked, folder):
    return EXPERIMENT.carry_out(asked, sweep_of(folder))


def from_folders(folders):
    return EXPERIMENT.analyse(folders)


@pytest.mark.parametrize("edge", [3e-5, 2.4e-3, 0.0301, 0.7, 4.0])
def test_the_search_brackets_any_edge(edge):
    stable = {lr: lr < edge for lr in (1e-3, 1e-2, 1e-1)}
    while (rate := next_rate(stable, 1.5)) is not None:
        assert rate not in stable
        stable[rate] = rate < edge
    below, above = bracket(stable)
    assert below < edge <= above
    assert above / below <= 1.5 * 1.01
    assert len(stable) <= 10, "a dense grid would need over forty"


def test_the_search_ends_where_there_is_no_edge():
    for always in (True, False):
        stable = dict.fromkeys((1e-3, 1e-2), always)
        while (rate := next_rate(stable, 2.0)) is not None:
            stable[rate] = always
        assert bracket(stable)[int(always)] is None


def test_maps_of_different_models_do_not_mix(tmp_path):
    for width in (8, 16):
        stability(request(dim=width, schemes=("pre_norm",), factor=1e9), tmp_path / str(width))
    merged = from_folders([tmp_path / "8", tmp_path / "16"])
    assert [region.map[:8] for region in merged.regions] == ["width 16", "width 8,"]
    alone = from_folders([tmp_path / "8"])
    assert alone.regions[0].warmups == merged.regions[1].warmups
    assert alone.regions[0].map == ""
    assert merged.notes == []


@pytest.mark.parametrize(("edges", "tried"), [("learning", {1e-2, 10.0}), ("stable", {1e-2, 0.316, 10.0})])
def test_one_edge_can_be_asked_for(edges, tried, tmp_path):
    """Between 0.01 and 10 lies where no_norm stops being stable; nothing learns at 0.01, so that edge is not there."""
    asked = request(schemes=("no_norm",), warmups=(0,), lrs=(1e-2, 10.0), factor=40.0, edges=edges)
    result = stability(asked, tmp_path)
    assert {cell.lr for cell in result.cells} == tried


def test_an_unfinished_map_says_so(tmp_path):
    stability(request(schemes=("pre_norm",), lrs=(1e-2, 1e-1), factor=1e9), tmp_path)
    sweep = json.loads((tmp_path / "sweep.json").read_text())
    assert from_folders([tmp_path]).notes == []
    closer = {**sweep, "request": {**sweep["request"], "factor": 1.1}}
    (tmp_path / "sweep.json").write_text(json.dumps(closer))
    assert "not bracketed as closely as asked" in from_folders([tmp_path]).notes[0]
    next(tmp_path.glob("*/summary.json")).unlink()
    (note,) = from_folders([tmp_path]).notes
    assert "is not finished" in note
    assert note in build(from_folders([tmp_path])).render().replace("&#x27;", "'").replace("&#39;", "'")


def test_runs_that_learn_nothing_decide_nothing(tmp_path):
    """Rates far too small to learn in 20 steps: all stable, none below the entropy of single tokens."""
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be that is the question " * 50)
    asked = request(schemes=("post_norm", "pre_norm"), lrs=(1e-7, 2e-7), edges="learning", seeds=2,
                    task=task("text", path=str(text)))  # fmt: skip
    result = stability(asked, tmp_path)
    tame = [c for c in result.cells if c.lr < 1e-6]
    assert {c.verdict for c in tame} == {"flat"}
    assert all(c.loss >= c.context_free_loss for c in tame)
    cold = analyse([c for c in read_runs(tmp_path) if c.config.train.lr < 1e-6])
    assert {claim.verdict for claim in cold.claims} == {"undecided"}
    assert len(cold.claims) == 6
    assert all("nothing was learned" in sentence for sentence in cold.statements)
    text.unlink()  # the folder alone is enough
    assert from_folders([tmp_path]) == result


def request(**changes):
    values = {"schemes": ("no_norm", "pre_norm"), "depths": (2,), "dim": 16, "heads": 2, "batch": 4, "length": 8,
              "task": task("tomita", number=4), "steps": 20, "warmups": (0, 5), "lrs": (1e-2, 10.0), "factor": 40.0,
              "clip": None}  # fmt: skip
    return StabilityRequest(**{**values, **changes})


def test_a_small_map(tmp_path):
    result = stability(request(), tmp_path)
    assert [(r.scheme, r.depth) for r in result.regions] == [("no_norm", 2), ("pre_norm", 2)]
    for region in result.regions:
        assert [line.warmup for line in region.warmups] == [0, 5]
        for line in region.warmups:
            if line.edge is not None and line.unstable_from is not None:
                assert line.unstable_from / line.edge <= 40.1
    assert len(result.cells) == len(list(tmp_path.glob("*/summary.json")))
    count = len(result.cells)
    assert json.dumps(stability(request(), tmp_path).to_dict()) == json.dumps(result.to_dict())
    assert len(read_runs(tmp_path)) == count
    assert json.dumps(from_folders([tmp_path]).to_dict()) == json.dumps(result.to_dict())
    page = build(result).render()
    assert "no_norm at 2 layers" in page
    assert "nan" in result.criteria
