"""The criteria on made-up losses, the search on made-up edges, and a small map for real."""

import json
import math
from dataclasses import fields, replace

import pytest

from normlab.errors import ConfigError
from normlab.experiments.stability.analyse import (
    USABLE,
    Gain,
    _claim,
    _claims,
    _region,
    analyse,
    bracket,
    gradient_spikes,
    judge,
    top,
)
from normlab.experiments.stability.experiment import EXPERIMENT, next_learning_rate, next_rate
from normlab.experiments.stability.page import build
from normlab.experiments.stability.request import StabilityRequest
from normlab.experiments.stability.result import JudgedRun, Region
from normlab.experiments.sweep import read_runs
from normlab.tasks import task
from tests.experiments.tiny import sweep_of

BLANK = dict.fromkeys(f.name for f in fields(JudgedRun))


def made_up(**values):
    """A run that was judged, of Post-Norm at four layers."""
    common = {
        "scheme": "post_norm",
        "depth": 4,
        "steps": 50,
        "gradient_spikes": 0,
        "context_free_loss": 3.0,
        "loss": 2.0,
    }
    return JudgedRun(**{**BLANK, **common, **values})


def stability(asked, folder):
    return EXPERIMENT.carry_out(asked, sweep_of(folder))


def from_folders(folders):
    return EXPERIMENT.analyse(folders)


DESCENT = [5 * math.exp(-i / 30) + 1 for i in range(100)]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (DESCENT, "stable"),
        ([*DESCENT[:50], 40.0, 30.0, 9.0, *DESCENT[53:]], "stable"),  # a spike that came back
        ([*DESCENT[:50], *[4.5] * 50], "spike"),
        ([*DESCENT[:50], *[7.0] * 50], "above"),
        ([*DESCENT[:50], None], "nan"),
        ([*DESCENT[:50], math.nan], "nan"),
        ([], "nan"),
    ],
)
def test_criteria(losses, expected):
    assert judge(losses) == expected
    assert judge(losses, "diverged") == "nan"


def test_gradient_spikes():
    assert gradient_spikes([1.0] * 50) == 0
    assert gradient_spikes([1.0] * 20 + [5.0] + [1.0] * 20 + [9.0] + [1.0] * 5) == 2
    assert gradient_spikes([1.0] * 20 + [None]) == 1


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


def test_an_island_above_the_first_unstable_rate_is_not_the_region():
    assert bracket({1e-3: True, 1e-2: False, 1e-1: True}) == (1e-3, 1e-2)


@pytest.mark.parametrize(
    ("scheme", "gains", "verdict"),
    [
        ("post_norm", [0.5, 0.6, 0.55], "confirmed"),
        ("post_norm", [0.01, -0.01, 0.0], "refuted"),
        ("post_norm", [0.5, -0.6, 0.1], "undecided"),
        ("pre_norm", [0.5, 0.6, 0.55], "refuted"),
        ("pre_norm", [0.01, -0.01, 0.0], "confirmed"),
        ("pre_norm", [0.5], "undecided"),
        ("post_norm", [0.005, 0.006, 0.004], "refuted"),  # a gain, but far below what counts
        ("pre_norm", [0.005, 0.006, 0.004], "confirmed"),
        ("post_norm", [0.12, 0.14, 0.09], "undecided"),
    ],
)
def test_who_needs_warm_up(scheme, gains, verdict):
    region = Region(scheme, 4, "", 50, [], 0, None, learned=True)
    claim = _claim(region, Gain("nats", gains, USABLE))
    assert claim.verdict == verdict
    assert claim.values == pytest.approx(gains)
    idle = _claim(replace(region, learned=False), Gain("nats", gains, USABLE))
    assert idle.verdict == "undecided"
    assert "below the loss of single tokens" in idle.reason


def test_the_edge_of_learning_is_bracketed_from_above():
    assert top({1e-4: False, 1e-3: True, 1e-2: False, 1e-1: False}) == (1e-3, 1e-2)
    assert top({1e-3: False}) == (None, None)
    learned = {1e-4: False, 1e-3: True, 1e-1: False}
    while (rate := next_learning_rate(learned, 1.5)) is not None:
        learned[rate] = 5e-4 < rate < 0.02
    below, above = top(learned)
    assert below < 0.02 <= above <= 1.6 * below
    assert next_learning_rate({1e-3: False, 1e-2: False}, 1.5) is None


def test_an_edge_that_was_not_found_is_no_number():
    runs = [made_up(warmup=w, lr=lr, seed=s, verdict="stable")
            for w in (0, 9) for lr in (1e-3, 1e-2) for s in (0, 1)]  # fmt: skip
    open_ = _region(runs, "")
    assert {claim.verdict for claim in _claims([open_])[:2]} == {"undecided"}
    runs += [made_up(warmup=w, lr=1e-1, seed=s, verdict="nan", loss=None) for w in (0, 9) for s in (0, 1)]
    wide = _claims([_region(runs, "")])
    assert [claim.values for claim in wide] == [[0.0, 0.0]] * 3
    assert [claim.verdict for claim in wide] == ["undecided", "undecided", "refuted"], "a factor of ten hides a gain"
    runs += [made_up(warmup=w, lr=0.013, seed=s, verdict="nan", loss=None) for w in (0, 9) for s in (0, 1)]
    assert {claim.verdict for claim in _claims([_region(runs, "")])} == {"refuted"}


def test_learning_with_warm_up_only_is_the_strongest_evidence():
    """No seed learns without it: the edge lies below the lowest rate, and counts as that rate."""
    runs = [made_up(warmup=w, lr=lr, seed=s, verdict="stable" if w and lr < 0.02 else "flat",
                    loss=2.0 if w and lr < 0.02 else 3.1)
            for w in (0, 9) for lr in (1e-3, 1e-2, 2e-2) for s in (0, 1, 2)]  # fmt: skip
    claims = {claim.number: claim for claim in _claims([_region(runs, "")])}
    learns = next(claim for number, claim in claims.items() if "rate that learns" in number)
    assert learns.values == pytest.approx([math.log2(10)] * 3)
    assert learns.verdict == "confirmed"
    never = [replace(run, verdict="flat") for run in runs]  # nothing learns: no seed has anything to say of that edge
    assert [c.n for c in _claims([_region(never, "")]) if "that learns" in c.number] == [0]
    turned = [replace(run, warmup=9 - run.warmup) for run in runs]  # learns without it only
    assert [c.verdict for c in _claims([_region(turned, "")]) if "that learns" in c.number] == ["undecided"]


def test_usable_is_measured_from_the_best_mean():
    losses = {1e-3: (2.0, 2.6), 1e-2: (2.5, 2.6)}
    runs = [
        made_up(lr=lr, seed=s, loss=loss, warmup=0, verdict="stable")
        for lr, found in losses.items()
        for s, loss in enumerate(found)
    ]
    assert _region(runs, "").warmups[0].usable == (1e-3, 1e-3)


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


def test_bad_requests():
    with pytest.raises(ConfigError, match="90 steps of warm-up do not fit into 20"):
        request(warmups=(0, 90)).check()
    with pytest.raises(ConfigError, match="two or more different positive rates"):
        request(lrs=(1e-3,))
    with pytest.raises(ConfigError, match="did you mean"):
        request(schemes=("pre_nom",))
