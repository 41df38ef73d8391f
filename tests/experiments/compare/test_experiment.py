"""The comparison from request to sentences, on runs small enough to be made for real."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from normlab.errors import ConfigError, UnsupportedError
from normlab.experiments.compare import experiment
from normlab.experiments.compare.analyse import best_rate
from normlab.experiments.compare.arms import Arm
from normlab.experiments.compare.experiment import EXPERIMENT, run_of
from normlab.experiments.compare.page import build as build_page
from normlab.experiments.compare.page import names_of
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.compare.tables import markdown
from normlab.experiments.runs.folder import load, prepare
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.runs.trainer import run_folder
from normlab.experiments.sweep import read_runs, read_sweep
from normlab.tasks import TASKS, task
from tests.experiments.compare.requests import request
from tests.experiments.tiny import sweep_of


def compare(asked, folder):
    return EXPERIMENT.carry_out(asked, sweep_of(folder))


def from_folders(folders, **options):
    return EXPERIMENT.analyse(folders, **options)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    return folder, compare(request(), folder)


def test_every_cell_and_every_scheme(done):
    folder, result = done
    (setting,) = result.settings
    assert {row.scheme for row in setting.schemes} == {"pre_norm", "block_attn_res"}
    assert setting.baseline == "pre_norm"
    assert setting.setting.tokens == 320
    assert len(result.cells) == len(list(folder.glob("*/summary.json")))
    for row in setting.schemes:
        assert set(row.losses) == {0, 1}
        assert len(row.rates) in (2, 3)
        assert row.layers["end"].magnitude is not None
        assert len(row.layers["start"].effect) == 4
        assert len(row.law) == 5
        assert row.tokens_per_second > 0
    json.dumps(result.to_dict())


def test_running_again_changes_nothing_and_the_disk_is_enough(done):
    folder, result = done
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*.json*")}
    again = compare(request(), folder)
    assert json.dumps(again.to_dict()) == json.dumps(result.to_dict())
    assert json.dumps(from_folders([folder]).to_dict()) == json.dumps(result.to_dict())
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*.json*")} == before


def test_differences_are_paired_by_seed(done):
    _, result = done
    rows = {row.scheme: row for row in result.settings[0].schemes}
    test = rows["block_attn_res"].difference
    gaps = [rows["block_attn_res"].losses[s] - rows["pre_norm"].losses[s] for s in (0, 1)]
    assert test.mean == pytest.approx(sum(gaps) / 2)
    assert test.n == 2
    assert result.settings[0].answer[0].startswith("At 2 layers of width 16, 320 training tokens and 2 seeds")


def test_another_request_in_the_same_folder(done):
    with pytest.raises(ConfigError, match=r"tokens was 320, now 640"):
        compare(request(tokens=640), done[0])


def test_what_an_unfinished_comparison_lacks_is_said(tmp_path):
    folder = tmp_path / "a"
    whole = compare(request(schemes=("pre_norm",), seeds=2, extend=0), folder)
    assert whole.notes == []
    cells = sorted(folder.glob("*/summary.json"))
    cells[0].unlink()
    (cells[0].parent / "failure.json").write_text('{"error": "the disk is full"}')
    (note,) = from_folders([folder]).notes
    assert "2 of 3 or more runs have ended; 1 failed" in note
    assert "the disk is full" in note
    for page in (build_page(from_folders([folder])).render(), markdown(from_folders([folder]))):
        assert "2 of 3 or more runs have ended" in page


def test_cost_is_measured_side_by_side(done):
    """Timed once, in cost.json; the baseline's is 1, whichever it is; the scheme's own arithmetic counts."""
    folder, result = done
    rows = {row.scheme: row for row in result.settings[0].schemes}
    assert rows["pre_norm"].cost.time == 1.0
    cost = rows["block_attn_res"].cost
    assert 0 < cost.low <= cost.time <= cost.high
    assert rows["block_attn_res"].flops_per_token > rows["pre_norm"].flops_per_token
    assert rows["pre_norm"].tokens_per_second == pytest.approx(4 * 8 / rows["pre_norm"].cost.seconds)
    turned = from_folders([folder], baseline="block_attn_res")
    other = {row.scheme: row.cost for row in turned.settings[0].schemes}
    assert other["pre_norm"].time == pytest.approx(1 / cost.time, rel=0.5)  # medians of ratios: nearly
    (folder / "cost.json").write_text("{")
    assert all(row.cost is None for row in from_folders([folder]).settings[0].schemes)
    again = compare(request(), folder)  # measured anew
    assert all(row.cost for row in again.settings[0].schemes)


def test_a_scheme_that_overflows_at_its_start_is_reported(tmp_path):
    """Without norms the branches' products explode in deep models, before the first step; the others' page stands."""
    measure = HeldOut(validations=1, curve_sequences=1, sequences=1, layer_sequences=1, prune=False)
    config = request(
        schemes=("pre_norm", "no_norm"),
        depths=(40,),
        dim=64,
        tokens=64,
        lrs=(1e-3,),
        seeds=1,
        measure=measure,
        start="old",
        recipe="authors",
    )
    result = compare(config, tmp_path)
    rows = {row.scheme: row for row in result.settings[0].schemes}
    assert rows["no_norm"].mean is None
    assert None in rows["no_norm"].layers["start"].magnitude
    assert "no_norm diverged" in result.settings[0].answer[1]
    assert "no_norm diverged at every learning rate" in build_page(result).render()


def test_settings_are_told_apart(done, tmp_path):
    compare(request(dim=8, schemes=("pre_norm",), lrs=(1e-3,), seeds=1), tmp_path)
    merged = from_folders([done[0], tmp_path])
    assert names_of(merged.settings) == ["2 layers of width 8", "2 layers of width 16"]
    page = build_page(merged).render()
    assert "The answer (2 layers of width 8)" in page
    assert "summary-2-layers-of-width-16" in page


def test_a_comparison_grows(tmp_path):
    """More seeds, schemes and depths: what is there is kept, and the whole equals a comparison that asked for all at once."""
    one = {"lrs": (1e-3,), "extend": 0}
    small = {"schemes": ("pre_norm",), "seeds": 1, **one}
    large = {"schemes": ("peri_norm", "pre_norm"), "seeds": 2, **one}
    compare(request(**small), tmp_path / "grown")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("grown/*/summary.json")}
    grown = compare(request(**large, depths=(2, 1)), tmp_path / "grown")
    assert before
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    whole = compare(request(**large, depths=(2, 1)), tmp_path / "whole")
    assert {c.cell: c.loss for c in grown.cells} == {c.cell: c.loss for c in whole.cells}
    again = compare(request(**large, depths=(2, 1)), tmp_path / "grown")
    assert json.dumps(again.to_dict()) == json.dumps(grown.to_dict())
    with pytest.raises(ConfigError, match=r"seeds was 2, now 1.*schemes, depths and seeds may be added to"):
        compare(request(**{**large, "seeds": 1}, depths=(2, 1)), tmp_path / "grown")


def test_the_grid_grows_where_its_end_is_best(tmp_path):
    result = compare(request(lrs=(1e-6, 2e-6), seeds=1, schemes=("pre_norm",)), tmp_path)
    (row,) = result.settings[0].schemes
    assert [r.lr for r in row.rates] == [1e-6, 2e-6, 4e-6]
    assert row.at_edge == "highest"
    assert "a better one may lie outside" in result.settings[0].statements["pre_norm"]


def test_best_rate_skips_diverged_ones(done):
    folder, _ = done
    runs = [run for run in read_runs(folder) if run.config.model.scheme.name == "pre_norm" and run.seed == 0]
    best, _ = best_rate(runs)
    died = [replace(run, summary=replace(run.summary, status="diverged")) if run.lr == best else run for run in runs]
    other, table = best_rate(died)
    assert other != best
    assert [rate.diverged for rate in table if rate.lr == best] == [1]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_compared(name, tmp_path):
    """Also those whose tokens no table embeds, on schemes with tied and with constrained tables."""
    config = request(schemes=("pre_norm", "ngpt"), task=task(name), tokens=128, lrs=(1e-3,), seeds=1)
    result = compare(config, tmp_path)
    assert [cell.status for cell in result.cells] == ["finished", "finished"]
    assert all(cell.loss < 10 for cell in result.cells)


def test_tuning_runs_of_their_own(tmp_path):
    """Shorter runs of two seeds choose the rate; every seed is then run at it, in full."""
    asked = request(tune_seeds=2, tune_share=0.5, seeds=2, extend=0)
    result = compare(asked, tmp_path)
    (setting,) = result.settings
    assert len(list((tmp_path / "tuning").glob("*/summary.json"))) == 2 * 2 * 2
    assert {run.steps for run in result.cells} == {10}
    assert all(set(row.losses) == {0, 1} for row in setting.schemes)
    assert any("50 % of the length" in note for note in result.notes)
    assert all([rate.lr for rate in row.rates] == [1e-3, 4e-3] for row in setting.schemes)  # of the tuning runs
    assert all(row.at_edge for row in setting.schemes)  # two rates have no inside


# -- how models begin ----------------------------------------------------------------------------------------------------
ONE = {"lrs": (1e-3,), "seeds": 1, "extend": 0}


def starts(result):
    return {row.scheme: row for row in result.settings[0].starts}


def test_all_schemes_begin_alike_by_default(tmp_path):
    result = compare(request(schemes=("pre_norm", "peri_norm", "post_norm", "res_norm"), **ONE), tmp_path)
    (setting,) = result.settings
    assert (setting.setting.recipe, setting.setting.start) == ("fair", "fair")
    first, *others = starts(result).values()
    assert len(others) == 3
    for row in others:
        assert row.embedding_rms == pytest.approx(first.embedding_rms, rel=0.01)
        for size in ("query_and_key", "value_and_up", "out_and_down"):
            assert getattr(row, size) == pytest.approx(getattr(first, size), rel=0.1)
        assert (row.qk_norm, row.weight_decay, row.decays_embeddings) == ("none", 0.1, True)
    assert "All schemes begin alike" in build_page(result).render()


@pytest.fixture(scope="module")
def by_recipes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes")
    schemes = ("pre_norm", "peri_norm", "res_norm", "b2t", "siamese_norm", "block_attn_res")
    return folder, compare(request(schemes=schemes, recipe="authors", **{**ONE, "seeds": 2}), folder)


CONTROLS = {
    "pre_norm @ peri_norm's start": "peri_norm", "pre_norm @ res_norm's start": "res_norm",
    "pre_norm @ post_norm's start": "b2t", "pre_norm @ fair start": "siamese_norm",
}  # fmt: skip


def test_recipes_bring_a_control_for_each_distinct_start(by_recipes):
    """Pre-Norm with that start: one for each, none for its own; what is not known begins as all do, and is no paper's."""
    folder, result = by_recipes
    (setting,) = result.settings
    rows = {row.scheme: row for row in setting.schemes}
    assert {name for name, row in rows.items() if row.is_control} == set(CONTROLS)
    assert setting.baseline == "pre_norm"
    begun = starts(result)
    for control, scheme in CONTROLS.items():
        assert rows[scheme].control == control
        for size in ("embedding_rms", "query_and_key", "value_and_up", "out_and_down"):
            assert getattr(begun[control], size) == pytest.approx(getattr(begun[scheme], size), rel=0.15)
        for same in ("qk_norm", "weight_decay", "decays_embeddings"):
            assert getattr(begun[control], same) == getattr(begun[scheme], same)
        gaps = [rows[scheme].losses[s] - rows[control].losses[s] for s in (0, 1)]
        assert rows[scheme].against_control.mean == pytest.approx(sum(gaps) / 2)
    assert rows["block_attn_res"].control is rows["pre_norm"].control is None  # theirs is the baseline's
    assert begun["peri_norm"].embedding_rms == pytest.approx(0.96, rel=0.2)
    assert begun["pre_norm"].embedding_rms == pytest.approx(0.02, rel=0.2)
    assert begun["b2t"].query_and_key == pytest.approx(1.0, rel=0.1)
    assert begun["siamese_norm"].source == "not known: the start that all share"
    assert begun["res_norm"].qk_norm == begun["pre_norm @ res_norm's start"].qk_norm == "full"
    assert begun["b2t"].source.startswith("as post_norm: Vaswani")
    assert len(result.cells) == 10 * 2
    assert len(list(folder.glob("pre_norm-peri_norm-l2*"))) == 2


def test_recipes_are_shown_and_found_again_from_the_folder_alone(by_recipes, capsys):
    folder, result = by_recipes
    again = from_folders([folder])
    assert json.dumps(again.to_dict()) == json.dumps(result.to_dict())
    page, kept = build_page(result).render(), markdown(result)
    EXPERIMENT.show(result)
    shown = capsys.readouterr().out
    for text in (page.replace("&#39;", "'"), kept, shown):
        for words in ("embedding rms", "peri_norm's", "q-k norm", "Gemma 2 as shipped"):  # a narrow table folds names
            assert words in text
    beside = from_folders([folder], baseline="pre_norm @ fair start").settings[0]
    assert beside.baseline == "pre_norm @ fair start"


def test_schemes_that_begin_otherwise_by_definition_are_named(tmp_path, capsys):
    """With the reason, in every output and with every recipe; nothing is said where there are none."""
    result = compare(request(schemes=("pre_norm", "rezero", "ngpt"), **ONE), tmp_path)
    (setting,) = result.settings
    assert set(setting.own_starts) == {"rezero", "ngpt"}
    EXPERIMENT.show(result)
    for text in (build_page(result).render(), markdown(result), " ".join(capsys.readouterr().out.split())):
        assert "By their definition these begin otherwise: ngpt (rows of matrices" in text
        assert "rezero (each branch is multiplied by 0)" in text
    assert "By their definition" not in markdown(from_folders([STORED]))


def test_an_added_scheme_adds_its_control(tmp_path):
    first = compare(request(schemes=("pre_norm", "peri_norm"), recipe="authors", **ONE), tmp_path)
    assert len(first.cells) == 3
    more = compare(request(schemes=("pre_norm", "peri_norm", "keel", "post_norm"), recipe="authors", **ONE), tmp_path)
    assert len(more.cells) == 7
    without = compare(request(schemes=("peri_norm", "gpas"), recipe="authors", **ONE), tmp_path / "without")
    names = {row.scheme for row in without.settings[0].schemes}
    assert names == {"peri_norm", "gpas", "pre_norm @ peri_norm's start", "pre_norm"}  # gpas begins as Pre-Norm does


def test_sharing_the_embedding_alone_is_of_the_past():
    with pytest.raises(ConfigError, match=r"'shared' belongs to older sweeps.*give 'fair'"):
        request(recipe="shared")
    assert request(recipe="shared", start="old").recipe == "shared"


# -- folders of before ---------------------------------------------------------------------------------------------------
STORED = Path(__file__).parent / "old_sweep"


@pytest.fixture
def old(tmp_path):
    """Made at 541c4aa: normlab compare --schemes pre_norm,peri_norm --dim 16 --heads 2 --depth 2 --batch 4 --length 8
    --data "tomita(number=4)" --tokens 640 --lrs 1e-3,3e-3 --seeds 2"""
    shutil.copytree(STORED, tmp_path / "old")
    return tmp_path / "old"


def test_a_folder_of_the_old_start_is_read_and_reported(old):
    result = from_folders([old])
    (setting,) = result.settings
    assert (setting.setting.recipe, setting.setting.start) == ("authors", "old")
    rows = {row.scheme: row for row in setting.schemes}
    assert set(rows) == {"pre_norm", "peri_norm"}
    assert all(set(row.losses) == {0, 1} for row in rows.values())
    assert rows["peri_norm"].difference.mean == pytest.approx(0.002029, abs=1e-6)  # as it was printed then
    assert rows["peri_norm"].cost.time == pytest.approx(1.061, abs=1e-3)
    assert result.notes == []
    begun = starts(result)
    assert begun["pre_norm"].embedding_rms == pytest.approx(0.02, rel=0.2)
    assert begun["peri_norm"].embedding_rms == pytest.approx(0.96, rel=0.2)
    assert begun["pre_norm"].query_and_key == pytest.approx(0.02 * 16**0.5, rel=0.1)
    page = build_page(result).render()
    assert "schemes differ in their start" in page
    assert "initialisation and weight decay (" not in page  # the false sentence of before


def test_a_folder_of_the_old_start_is_not_continued(old):
    before = sorted(path.relative_to(old) for path in old.rglob("*"))
    asked = {**read_sweep(old).request, "recipe": "fair"}
    for more in ({}, {"recipe": "authors"}, {"seeds": 3}):
        with pytest.raises(ConfigError, match=r"have the start 'old'.*report.*another --out"):
            compare(CompareRequest.from_dict({**asked, **more}), old)
    assert sorted(path.relative_to(old) for path in old.rglob("*")) == before


def test_a_folder_of_the_old_start_goes_on_as_it_began(old):
    """The runs that would be made are those that are there, to the letter: a preset that pins the old start goes on."""
    asked = CompareRequest.from_dict({**read_sweep(old).request, "start": "old"})
    for path in old.glob("*/config.yaml"):
        run = load(path.parent)
        arm = Arm(run.model.scheme.name, 2)
        assert arm == Arm.of(run)
        assert run_of(asked, arm, lr=run.train.lr, seed=run.train.seed, steps=20) == run


def test_old_and_new_runs_are_two_settings(old, tmp_path):
    values = {**read_sweep(old).request, "recipe": "authors", "lrs": [1e-3], "seeds": 1}
    compare(CompareRequest.from_dict(values), tmp_path / "new")
    merged = from_folders([old, tmp_path / "new"])
    assert sorted(setting.setting.start for setting in merged.settings) == ["fair", "old"]


# -- seeds ---------------------------------------------------------------------------------------------------------------
def test_fewer_seeds_are_said_with_the_reason_and_may_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "settle_size", lambda *_, **__: {"steps": 10, "seeds": 2})
    values = {
        key: value for key, value in request(**ONE).to_dict().items() if key not in ("seeds", "fewest_seeds", "tokens")
    }
    result = compare(CompareRequest.from_dict({**values, "budget": "3m"}), tmp_path)
    assert {run.seed for run in result.cells} == {0, 1}
    (note,) = result.notes
    assert note.startswith("2 random seeds instead of 5: with more, a budget of 3m has no time for 10 training tokens")
    assert note in build_page(result).render()
    more = compare(CompareRequest.from_dict({**values, "budget": "3m", "seeds": 5}), tmp_path)
    assert {run.seed for run in more.cells} == {0, 1, 2, 3, 4}
    assert more.notes == []
    again = compare(CompareRequest.from_dict({**values, "budget": "3m"}), tmp_path)  # five are there, and stay
    assert json.dumps(again.to_dict()) == json.dumps(more.to_dict())


# -- somebody's architecture ---------------------------------------------------------------------------------------------
def backbone(folder, **values):
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 99, **small, **values}))
    return str(folder)


def on_backbone(source, **changes):
    values = request(**changes).to_dict()
    for key in ("dim", "heads", "depths", "recipe"):
        values.pop(key)
    return CompareRequest.from_dict({**values, "backbone": source, "lrs": [1e-3], "seeds": 1})


def test_schemes_on_a_backbone(tmp_path):
    """Random models of that architecture, trained by the same loop, measured, and continued by running it again."""
    pytest.importorskip("transformers")
    asked = on_backbone(backbone(tmp_path))
    assert (asked.dim, asked.depths, asked.heads, asked.recipe) == (16, (2,), 2, "fair")
    result = compare(asked, tmp_path / "sweep")
    (setting,) = result.settings
    assert setting.setting.architecture == "llama"
    assert "t llama, 2 layers of width 16" in setting.answer[0]
    assert any("random ones of the architecture" in note for note in result.notes)
    assert {row.scheme for row in setting.schemes} == {"pre_norm", "block_attn_res"}
    for row in setting.schemes:
        assert len(row.layers["end"].magnitude) == 5
        assert row.flops_per_token > 0
    assert setting.schemes[0].parameters != setting.schemes[1].parameters
    (tmp_path / "config.json").unlink()  # the runs hold the architecture whole
    assert json.dumps(from_folders([tmp_path / "sweep"]).to_dict()) == json.dumps(result.to_dict())


def test_a_run_on_a_backbone_goes_on_where_it_stopped(tmp_path):
    pytest.importorskip("transformers")
    asked = on_backbone(backbone(tmp_path))
    config = run_of(asked, Arm("block_attn_res", 2), lr=1e-3, seed=0, steps=8)
    config = config.replace(train=config.train.replace(checkpoint_every=3))
    for name in ("whole", "parts"):
        prepare(tmp_path / name, config)
    (whole,) = run_folder(tmp_path / "whole")
    assert run_folder(tmp_path / "parts", until=5) == []
    (parts,) = run_folder(tmp_path / "parts")
    assert parts.loss == whole.loss
    assert parts.summary.weights == whole.summary.weights


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"schemes": ("pre_norm", "ngpt")}, UnsupportedError, "ngpt reaches inside the branches"),
        ({"recipe": "authors"}, ConfigError, "recipe: 'authors' sets embedding and initialisation"),
        ({"depths": (3,)}, ConfigError, "has 2 layers, so 3 are not to be had"),
        ({"length": 4096}, ConfigError, "4096 is beyond the 2048"),
    ],
)
def test_what_a_backbone_cannot_be(changes, error, says, tmp_path):
    pytest.importorskip("transformers")
    values = on_backbone(backbone(tmp_path)).to_dict()
    with pytest.raises(error, match=says):
        compare(CompareRequest.from_dict({**values, **changes}), tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()
