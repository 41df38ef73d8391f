"""The comparison from request to sentences, on cells small enough to run for real, and on made-up numbers."""

import json

import pytest
from tiny import Here

from normlab.errors import ConfigError
from normlab.experiments import compare as module
from normlab.experiments.analysis import best_rate, label
from normlab.experiments.cell import MeasureConfig, build
from normlab.experiments.compare import CompareConfig, compare, parse_scheme, seconds, settle_steps
from normlab.experiments.compare_page import build as build_page
from normlab.experiments.compare_page import names_of
from normlab.experiments.compare_tables import markdown
from normlab.experiments.sweep import Sweep, read_cells
from normlab.tasks import TASKS, task


def request(**changes):
    values = {
        "schemes": ("pre_norm", "block_attn_res"), "depths": (2,), "dim": 16, "heads": 2, "batch": 4, "length": 8,
        "task": task("tomita", number=4), "tokens": 4 * 8 * 10, "seeds": 2, "lrs": (1e-3, 4e-3), "extend": 1,
        "measure": MeasureConfig(validations=4, curve_sequences=8, sequences=8, layer_sequences=2),
    }  # fmt: skip
    return CompareConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    return folder, compare(request(), Sweep(folder, Here(), quiet=True))


def test_every_cell_and_every_scheme(done):
    folder, result = done
    (setting,) = result["settings"]
    assert {row["scheme"] for row in setting["schemes"]} == {"pre_norm", "block_attn_res"}
    assert setting["baseline"] == "pre_norm"
    assert setting["setting"]["tokens"] == 320
    assert len(result["cells"]) == len(list(folder.glob("*/summary.json")))
    for row in setting["schemes"]:
        assert set(row["losses"]) == {0, 1}
        assert len(row["rates"]) in (2, 3)
        assert row["layers"]["end"]["magnitude"] is not None
        assert len(row["law"]) == 5
        assert row["tokens_per_second"] > 0
    json.dumps(result)


def test_running_again_changes_nothing_and_the_disk_is_enough(done):
    folder, result = done
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*.json*")}
    again = compare(request(), Sweep(folder, Here(), quiet=True))
    assert json.dumps(again) == json.dumps(result)
    assert json.dumps(module.from_folders([folder])) == json.dumps(result)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*.json*")} == before


def test_differences_are_paired_by_seed(done):
    _, result = done
    rows = {row["scheme"]: row for row in result["settings"][0]["schemes"]}
    test = rows["block_attn_res"]["difference"]
    gaps = [rows["block_attn_res"]["losses"][s] - rows["pre_norm"]["losses"][s] for s in (0, 1)]
    assert test["mean"] == pytest.approx(sum(gaps) / 2)
    assert test["n"] == 2
    assert result["settings"][0]["answer"][0].startswith("At 2 layers of width 16, 320 training tokens and 2 seeds")


def test_another_request_in_the_same_folder(done):
    with pytest.raises(ConfigError, match=r"tokens was 320, now 640"):
        compare(request(tokens=640), Sweep(done[0], Here(), quiet=True))


def test_what_an_unfinished_comparison_lacks_is_said(tmp_path):
    folder = tmp_path / "a"
    whole = compare(request(schemes=("pre_norm",), seeds=2, extend=0), Sweep(folder, Here(), quiet=True))
    assert whole["notes"] == []
    cells = sorted(folder.glob("*/summary.json"))
    cells[0].unlink()
    (cells[0].parent / "failure.json").write_text('{"error": "the disk is full"}')
    (note,) = module.from_folders([folder])["notes"]
    assert "2 of 3 or more runs have ended; 1 failed" in note
    assert "the disk is full" in note
    for page in (build_page(module.from_folders([folder])).render(), markdown(module.from_folders([folder]))):
        assert "2 of 3 or more runs have ended" in page


def test_cost_is_measured_side_by_side(done):
    """Timed once, in cost.json; the baseline's is 1, whichever it is; the scheme's own arithmetic counts."""
    folder, result = done
    rows = {row["scheme"]: row for row in result["settings"][0]["schemes"]}
    assert rows["pre_norm"]["cost"]["time"] == 1.0
    cost = rows["block_attn_res"]["cost"]
    assert 0 < cost["low"] <= cost["time"] <= cost["high"]
    assert rows["block_attn_res"]["flops_per_token"] > rows["pre_norm"]["flops_per_token"]
    assert rows["pre_norm"]["tokens_per_second"] == pytest.approx(4 * 8 / rows["pre_norm"]["cost"]["seconds"])
    turned = module.from_folders([folder], baseline="block_attn_res")
    other = {row["scheme"]: row["cost"] for row in turned["settings"][0]["schemes"]}
    assert other["pre_norm"]["time"] == pytest.approx(1 / cost["time"], rel=0.5)  # medians of ratios: nearly
    (folder / "cost.json").write_text("{")
    assert all(row["cost"] is None for row in module.from_folders([folder])["settings"][0]["schemes"])
    again = compare(request(), Sweep(folder, Here(), quiet=True))  # measured anew
    assert all(row["cost"] for row in again["settings"][0]["schemes"])


def test_a_scheme_that_overflows_at_its_start_is_reported(tmp_path):
    """Without norms the branches' products explode in deep models, before the first step; the others' page stands."""
    measure = MeasureConfig(validations=1, curve_sequences=1, sequences=1, layer_sequences=1, prune=False)
    config = request(
        schemes=("pre_norm", "no_norm"), depths=(40,), dim=64, tokens=64, lrs=(1e-3,), seeds=1, measure=measure
    )
    result = compare(config, Sweep(tmp_path, Here(), quiet=True))
    rows = {row["scheme"]: row for row in result["settings"][0]["schemes"]}
    assert rows["no_norm"]["mean"] is None
    assert None in rows["no_norm"]["layers"]["start"]["magnitude"]
    assert "no_norm diverged" in result["settings"][0]["answer"][1]
    assert "no_norm diverged at every learning rate" in build_page(result).render()


def test_settings_are_told_apart(done, tmp_path):
    compare(request(dim=8, schemes=("pre_norm",), lrs=(1e-3,), seeds=1), Sweep(tmp_path, Here(), quiet=True))
    merged = module.from_folders([done[0], tmp_path])
    assert names_of(merged["settings"]) == ["2 layers of width 8", "2 layers of width 16"]
    page = build_page(merged).render()
    assert "The answer (2 layers of width 8)" in page
    assert "summary-2-layers-of-width-16" in page


def test_a_comparison_grows(tmp_path):
    """More seeds, schemes and depths: what is there is kept, and the whole equals a comparison that asked for all at once."""
    one = {"lrs": (1e-3,), "extend": 0}
    small = {"schemes": ("pre_norm",), "seeds": 1, **one}
    large = {"schemes": ("peri_norm", "pre_norm"), "seeds": 2, **one}
    compare(request(**small), Sweep(tmp_path / "grown", Here(), quiet=True))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("grown/*/summary.json")}
    grown = compare(request(**large, depths=(2, 1)), Sweep(tmp_path / "grown", Here(), quiet=True))
    assert before
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    whole = compare(request(**large, depths=(2, 1)), Sweep(tmp_path / "whole", Here(), quiet=True))
    assert {c["cell"]: c["loss"] for c in grown["cells"]} == {c["cell"]: c["loss"] for c in whole["cells"]}
    again = compare(request(**large, depths=(2, 1)), Sweep(tmp_path / "grown", Here(), quiet=True))
    assert json.dumps(again) == json.dumps(grown)
    with pytest.raises(ConfigError, match=r"seeds was 2, now 1.*schemes, depths and seeds may be added to"):
        compare(request(**{**large, "seeds": 1}, depths=(2, 1)), Sweep(tmp_path / "grown", Here(), quiet=True))


def test_the_grid_grows_where_its_end_is_best(tmp_path):
    result = compare(request(lrs=(1e-6, 2e-6), seeds=1, schemes=("pre_norm",)), Sweep(tmp_path, Here(), quiet=True))
    (row,) = result["settings"][0]["schemes"]
    assert [r["lr"] for r in row["rates"]] == [1e-6, 2e-6, 4e-6]
    assert row["at_edge"] == "highest"
    assert "a better one may lie outside" in result["settings"][0]["statements"]["pre_norm"]


def test_best_rate_skips_diverged_ones(done):
    folder, _ = done
    cells = [c for c in read_cells(folder) if c.scheme == "pre_norm" and c.config.train.seed == 0]
    best, _ = best_rate(cells)
    for cell in cells:
        if cell.config.train.lr == best:
            cell.summary["status"] = "diverged"
    other, table = best_rate(cells)
    assert other != best
    assert [r["diverged"] for r in table if r["lr"] == best] == [1]


def test_schemes_with_options():
    assert (
        label(parse_scheme("block-attn-res(blocks=2, inner=peri_norm)")) == "block_attn_res(inner=peri_norm, blocks=2)"
    )
    with pytest.raises(ConfigError, match="did you mean 'pre_norm'"):
        request(schemes=("pre_nrm",))
    with pytest.raises(ConfigError, match="given twice"):
        request(schemes=("pre_norm", "pre-norm"))
    with pytest.raises(ConfigError, match="key=value"):
        parse_scheme("block_attn_res(blocks)")


def test_budgets():
    assert [seconds(t) for t in ("90", "90s", "10m", "1.5h")] == [90, 90, 600, 5400]
    with pytest.raises(ConfigError, match="written like 90s, 10m or 2h"):
        seconds("ten minutes")
    with pytest.raises(ConfigError, match="less than one step of 4 x 8 = 32 tokens"):
        settle_steps(request(tokens=31), workers=1)
    with pytest.raises(ConfigError, match="either tokens"):
        request(budget="1m")


STEP = {("pre_norm", 2): 0.25, ("block_attn_res", 2): 0.5}  # seconds


def plain(monkeypatch, times=STEP):
    """Nothing but steps takes time: walls can be counted by hand."""
    for name, value in {"START": 0.0, "CELL": 0.0, "FORWARD": 0.0, "REPEATS": -1, "PARALLEL": 1.0}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module.timing, "ROUNDS", -1)
    monkeypatch.setattr(module, "time_steps", lambda config, device: times)


@pytest.mark.parametrize(
    ("workers", "per_step"),
    [
        (1, 4 * 0.25 + 4 * 0.5),  # two rates, one wider, one more seed: four cells of each scheme
        (2, (0.25 + 0.5) + 0.5 + 0.5),  # a short and a long one each, then one each, twice
        (8, 3 * 0.5),  # a phase takes as long as its longest cell
        (64, 3 * 0.5),
    ],
)
def test_phases_come_one_after_the_other(workers, per_step, monkeypatch):
    plain(monkeypatch)
    config = request(tokens=None, budget="2m")
    assert module.total_seconds(config, STEP, 10, workers=workers) == pytest.approx(10 * per_step)
    assert settle_steps(config, workers=workers) == int(120 / per_step)


@pytest.mark.parametrize("workers", [1, 2, 8, 64])
def test_a_budget_is_kept_with_any_number_of_workers(workers, monkeypatch):
    monkeypatch.setattr(module, "time_steps", lambda config, device: STEP)
    for changes in ({}, {"measure": None}, {"seeds": 30}, {"lrs": (1e-3,)}, {"extend": 0, "seeds": 1}):
        config = request(tokens=None, budget="10m", **changes)
        steps = settle_steps(config, workers=workers)
        # Sizes that suit the length of the runs have a least: a few steps do not make measuring free.
        now, more = (module.total_seconds(config, STEP, n, workers=workers) for n in (steps, steps + 1))
        assert now <= 600 < more
        phases = 2 if config.seeds > 1 else 1
        assert now >= module.START + phases * steps * 0.5  # no number of workers makes one cell faster


def test_workers_start_once(monkeypatch):
    plain(monkeypatch)
    monkeypatch.setattr(module, "START", 7.0)
    wall = {n: module.total_seconds(request(), STEP, 10, workers=n) for n in (1, 2, 8)}
    assert wall == pytest.approx({1: 37, 2: 7 + 17.5, 8: 7 + 15})
    # More seeds than rates: four more workers start with the second phase, and the first four take 2.5 + 5 + 5 meanwhile.
    assert module.total_seconds(request(seeds=9, extend=0), STEP, 10, workers=8) == pytest.approx(7 + 5 + 12.5)


@pytest.mark.parametrize("budget", ["0.1s", "3s"])
def test_a_budget_that_is_too_small_says_what_it_takes(budget, monkeypatch):
    monkeypatch.setattr(module, "time_steps", lambda config, device: dict.fromkeys(STEP, 1e-3))
    with pytest.raises(
        ConfigError, match=rf"budget: {budget} is too small for one step of each of the 8 runs .* about \d+ s here"
    ) as caught:
        settle_steps(request(tokens=None, budget=budget), workers=64)
    assert "about 0 s" not in str(caught.value)
    assert settle_steps(request(tokens=None, budget="7s"), workers=64) > 1


def test_steps_are_timed_on_the_device_of_the_sweep(monkeypatch, tmp_path):
    class Elsewhere(Here):
        device, at_once, workers = "meta", 3, 9

    seen = []
    for part in (module, module.timing):
        monkeypatch.setattr(part, "build", lambda cell, device: seen.append(device) or build(cell, device="cpu"))
    monkeypatch.setattr(module, "total_seconds", lambda *a, workers: seen.append(workers) or a[2] * 10.0)
    compare(request(tokens=None, budget="100s", lrs=(1e-3,), seeds=1), Sweep(tmp_path, Elsewhere(), quiet=True))
    assert set(seen) == {"meta", 3}
    assert settled(tmp_path)["steps"] == 10


def settled(folder):
    return json.loads((folder / "sweep.json").read_text())["settled"]


def test_time_budget_is_measured():
    steps = settle_steps(request(tokens=None, budget="20s"), workers=1)
    assert steps > 1


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_compared(name, tmp_path):
    """Also those whose tokens no table embeds, on schemes with tied and with constrained tables."""
    config = request(schemes=("pre_norm", "ngpt"), task=task(name), tokens=128, lrs=(1e-3,), seeds=1)
    result = compare(config, Sweep(tmp_path, Here(), quiet=True))
    assert [cell["status"] for cell in result["cells"]] == ["finished", "finished"]
    assert all(cell["loss"] < 10 for cell in result["cells"])
