"""The HTML page: escaped, complete, and (slow) alive in a real browser."""

import json

import pytest
import torch

from normlab.probes.diagnose import diagnose
from normlab.probes.diagnosis import Diagnosis
from normlab.probes.show.page import build as build_page
from tests.probes.zoo import build, inputs


@pytest.fixture(scope="module")
def found():
    model = build("llama")
    torch.nn.init.zeros_(model.model.layers[1].mlp.down_proj.weight)  # something to report
    return diagnose(model, [inputs("llama", batch=4, tokens=32)], name="<script>alert(1)</script>", lengths=(8, 16, 32))


def test_names_are_escaped(found):
    assert "<script>alert(1)" not in build_page([found]).render()
    assert "<script>alert(1)" not in build_page([found, found]).render()


def test_a_page_can_be_drawn_again_from_json(found, tmp_path):
    path = found.to_json(tmp_path / "diagnosis.json")
    again = Diagnosis.from_dict(json.loads(path.read_text()))
    assert again.to_dict() == found.to_dict()
    assert build_page([again]).render() == build_page([found]).render()


def test_theory_is_beside_the_measurement(found):
    text = build_page([found]).render()
    assert "if branches were orthogonal" in text
    assert "lower bound" in text
    assert "random weights predict 0.5" in text
    assert "attention alone, Q = K = V = I" in text


@pytest.mark.slow
@pytest.mark.parametrize("models", [1, 2])
def test_in_a_browser(opened, found, tmp_path, models):
    other = diagnose(build("bert"), [inputs("bert", batch=4, tokens=32)], name="bert", mask_id=3, lengths=(8, 16, 32))
    path = build_page([found, other][:models]).write(tmp_path / "report.html")
    assert path.stat().st_size < 7_000_000
    page = opened(path)
    assert page.trouble == []
    answer = page.locator("p.lead").first
    assert answer.inner_text() == found.headline
    body = page.locator(".plot").first.bounding_box()
    assert (
        answer.bounding_box()["y"] < body["y"] < body["y"] + body["height"] < 900
    )  # sentence and picture: the first screen
    assert page.locator("[data-verdict]").first.is_visible()
    plots = page.locator(".plot")
    assert plots.count() >= 7
    for i in range(plots.count()):
        assert plots.nth(i).locator("svg.main-svg").count() > 0
    assert page.locator(".plot .scatterlayer .trace").count() >= 10
    # A layer can be picked with the keyboard alone.
    page.locator("#layer-pick").focus()
    before = page.locator("#layer-card").inner_text()
    page.keyboard.press("ArrowDown")
    after = page.locator("#layer-card").inner_text()
    assert before != after
    assert page.locator("#layer-card dd").first.inner_text() == "1"
    page.close()


@pytest.mark.slow
def test_dark_and_on_a_phone(opened, found, tmp_path):
    path = build_page([found]).write(tmp_path / "report.html")
    page = opened(path, width=390, scheme="dark")
    assert page.trouble == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == "rgb(13, 17, 23)"
    page.locator("#theme").click()
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    page.close()


def test_text_is_never_wider_than_a_terminal(found):
    assert max(map(len, str(found).splitlines())) <= 100
    deep = diagnose(_deep(), [torch.randint(5, 97, (2, 16))], loss="none", attention=False)
    assert len(deep.layers) == 60
    assert max(map(len, str(deep).splitlines())) <= 100


def _deep():
    from tests.probes.zoo import Encoder

    torch.manual_seed(0)
    return Encoder(norm_first=True, depth=60)
