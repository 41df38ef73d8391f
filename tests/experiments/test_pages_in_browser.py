"""The pages of experiments in a real browser: from disk, silent, drawn, dark, narrow, saved, every label readable."""

import csv

import pytest

from normlab.experiments.atlas.measure import measure as measure_atlas
from normlab.experiments.atlas.request import AtlasRequest
from normlab.experiments.compare.experiment import EXPERIMENT as COMPARE
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.demo import stages
from normlab.experiments.demo.settings import settings
from normlab.experiments.demo.story import Story
from normlab.experiments.executors.here import HereExecutor
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.stability.experiment import EXPERIMENT as STABILITY
from normlab.experiments.stability.request import StabilityRequest
from normlab.tasks import task
from tests.experiments.tiny import sweep_of
from tests.labels import trouble

pytestmark = pytest.mark.slow
SHAPE = {"depths": (4,), "dim": 16, "heads": 2, "batch": 4, "length": 8, "task": task("tomita", number=4)}
NAMES = ["compare", "stability", "atlas", "demo"]
SCHEMES = ("pre_norm", "block_attn_res", "ln_scaling", "mix_norm")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """{name: (file, result)}"""
    folder = tmp_path_factory.mktemp("pages")
    measure = HeldOut(validations=4, curve_sequences=8, sequences=8, layer_sequences=2)
    request = CompareRequest(
        schemes=SCHEMES, tokens=4 * 8 * 10, seeds=2, lrs=(1e-3, 4e-3), extend=0, measure=measure, **SHAPE
    )
    compared = COMPARE.carry_out(request, sweep_of(folder / "compare"))
    asked = StabilityRequest(steps=20, warmups=(0, 5), lrs=(1e-2, 10.0), factor=40.0, clip=None, **SHAPE)
    mapped = STABILITY.carry_out(asked, sweep_of(folder / "stability"))
    looked = measure_atlas(AtlasRequest(schemes=("all",), depth=4, dim=32, batch=2, rounds=1), quiet=True)
    small = settings(schemes=SCHEMES, depth=4, dim=16, steps=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "by_name", lambda *_, **__: HereExecutor())
        told = Story(small, folder / "demo", quiet=True).tell()
    return {
        "atlas": (looked.to_html(folder / "atlas.html"), looked),
        "demo": (told.page, told),
        "compare": (compared.to_html(folder / "compare.html"), compared),
        "stability": (mapped.to_html(folder / "stability.html"), mapped),
    }


def saved(tab, button):
    with tab.expect_download() as waiting:
        button.click()
    with open(waiting.value.path(), encoding="utf-8", newline="") as file:
        return waiting.value.suggested_filename, list(csv.DictReader(file))


@pytest.mark.parametrize("name", NAMES)
def test_drawn_silent_and_from_disk(opened, pages, name):
    path, _ = pages[name]
    assert path.stat().st_size < 7_000_000
    tab = opened(path)
    assert tab.locator("p.lead").first.bounding_box()["y"] < 300, "the answer comes first"
    plots = tab.locator(".plot")
    assert plots.first.bounding_box()["y"] < 700, "and its picture is on the first screen"
    if tab.locator("table").count():
        assert tab.locator("table").first.bounding_box()["y"] > plots.first.bounding_box()["y"], "tables come last"
    for i in range(plots.count()):
        assert plots.nth(i).locator("svg.main-svg").count() > 0, plots.nth(i).get_attribute("aria-label")
        assert plots.nth(i).locator("svg .trace, svg .hm").count() > 0, plots.nth(i).get_attribute("aria-label")
    assert tab.trouble == []
    tab.close()


def test_the_same_axes_in_every_panel_and_theory_laid_over(opened, pages):
    tab = opened(pages["compare"][0])
    magnitude = tab.locator(".plot[aria-label^='Magnitude of what each branch reads']")
    facts = magnitude.evaluate(
        """plot => ({titles: plot.layout.annotations.map(a => a.text), names: [...new Set(plot.data.map(t => t.name))],
        ranges: Object.keys(plot._fullLayout).filter(k => /^yaxis/.test(k)).map(k => plot._fullLayout[k].range.join())})"""
    )
    assert set(facts["titles"]) == set(SCHEMES)
    assert {"start", "middle", "end", "law at the start", "end, if orthogonal"} <= set(facts["names"])
    assert len(facts["ranges"]) == 4
    assert len(set(facts["ranges"])) == 1, "small multiples share their axes"
    magnitude.scroll_into_view_if_needed()
    box = magnitude.locator(".nsewdrag").first.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shown = tab.wait_for_selector(".hoverlayer .legend", timeout=5000).inner_html()
    assert all(f">{when} : " in shown for when in ("start", "middle", "end")), "the values under the pointer"
    assert tab.locator(".plot[aria-label^='Depth mixing'] .heatmaplayer image").count() == 3
    tab.close()


def test_everything_can_be_saved(opened, pages):
    tab = opened(pages["compare"][0])
    result = pages["compare"][1]
    files = dict(saved(tab, button) for button in tab.locator("button[data-csv]").all())
    names = ("summary", "more", "claims", "layers", "training", "mixing", "cells")
    assert set(files) == {f"{name}.csv" for name in names}
    matrix = next(r.layers["end"].mixing for r in result.settings[0].schemes if r.scheme == "pre_norm")
    row = next(r for r in files["mixing.csv"] if (r["scheme"], r["read"], r["source"]) == ("pre_norm", "8", "3"))
    assert float(row["weight"]) == matrix[8][3]
    assert len(files["cells.csv"]) == len(result.cells)
    losses = {row["cell"]: float(row["loss"]) for row in files["cells.csv"]}
    assert losses == {cell.cell: cell.loss for cell in result.cells}
    assert {row["scheme"] for row in files["layers.csv"]} == set(SCHEMES)
    assert {row["scheme"] for row in files["training.csv"]} == set(SCHEMES)
    tab.close()
    tab = opened(pages["stability"][0])
    files = dict(saved(tab, button) for button in tab.locator("button[data-csv]").all())
    assert {row["verdict"] for row in files["cells.csv"]} <= {"stable", "flat", "nan", "above", "spike"}
    assert len(files["cells.csv"]) == len(pages["stability"][1].cells)
    tab.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1440, 390])
def test_every_label_can_be_read(opened, pages, name, width):
    tab = opened(pages[name][0], width=width)
    assert trouble(tab) == []
    tab.close()


@pytest.mark.parametrize("name", NAMES)
def test_dark_and_on_a_phone(opened, pages, name):
    tab = opened(pages[name][0], width=390, scheme="dark")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    colour = "getComputedStyle(document.body).backgroundColor"
    assert tab.evaluate(colour) == "rgb(13, 17, 23)"
    ink = tab.locator(".plot .xtick text").first.evaluate("t => t.style.fill")
    assert ink == "rgb(230, 237, 243)", "the plots are drawn for a dark page"
    tab.locator("#theme").click()
    assert tab.evaluate(colour) == "rgb(255, 255, 255)"
    assert tab.trouble == []
    tab.close()
