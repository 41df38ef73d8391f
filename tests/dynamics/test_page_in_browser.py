"""The page in a real browser: the player plays, pauses, seeks and turns."""

import pytest

from normlab.dynamics import PAPER_SIX, Setting, simulate
from normlab.dynamics.experiment import explore
from normlab.dynamics.page import build_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "dynamics.html"
    found = explore(PAPER_SIX, Setting(n=256, d=256, beta=5.0, init="symmetric"))
    ball = simulate(
        PAPER_SIX, n=40, d=3, beta=1.0, time=10.0, keep_tokens=True, samples=121, relative=1e-6, absolute=1e-8
    )
    return build_page(found, ball, notes=[], command="normlab dynamics").write(path)


@pytest.fixture
def page(page_file, browser):
    tab = browser.new_page(viewport={"width": 1120, "height": 1000})
    problems = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    tab.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
    tab.goto(page_file.as_uri())
    tab.wait_for_function("window.normlabSphere && document.documentElement.dataset.ready === 'yes'")
    yield tab
    tab.close()
    assert problems == []


def _pixels(page, index=0):
    """How many pixels of a sphere are drawn, and a hash of them."""
    return page.evaluate(
        """index => { const c = document.querySelectorAll('#sphere-grid canvas')[index];
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let drawn = 0, hash = 0;
        for (let i = 0; i < d.length; i += 4) { if (d[i + 3]) drawn++; hash = (hash * 31 + d[i] + 7 * d[i + 3]) | 0; }
        return [drawn, hash]; }""",
        index,
    )


def test_six_spheres_and_four_plots_are_drawn(page):
    assert page.locator("#sphere-grid canvas").count() == 6
    assert page.locator(".plot .main-svg").count() >= 4
    assert all(_pixels(page, i)[0] > 1000 for i in range(6))


def test_play_moves_and_pause_stops(page):
    start = _pixels(page)
    page.click("#sphere-play")
    page.wait_for_function("normlabSphere.state.frame > 5")
    page.click("#sphere-play")
    assert page.inner_text("#sphere-play") == "Play"
    stopped = page.evaluate("normlabSphere.state.frame")
    moved = _pixels(page)
    page.wait_for_timeout(300)
    assert page.evaluate("normlabSphere.state.frame") == stopped
    assert moved != start


def test_it_plays_to_the_end_and_starts_over(page):
    page.select_option("#sphere-speed", "4")
    page.click("#sphere-play")
    page.wait_for_function("normlabSphere.state.frame >= 120 && !normlabSphere.state.playing", timeout=20_000)
    assert page.inner_text("#sphere-clock") == "t = 10.00"
    page.click("#sphere-play")
    page.wait_for_function("normlabSphere.state.playing && normlabSphere.state.frame < 60")


def test_the_slider_seeks_and_the_cosine_is_the_simulations(page):
    page.locator("#sphere-time").fill("120")
    texts = page.locator("#sphere-grid figcaption span").all_inner_texts()
    cosines = dict(zip(PAPER_SIX, [float(t.split()[1]) for t in texts], strict=True))
    assert cosines["post_norm"] > 0.99
    assert cosines["pre_norm"] < cosines["peri_norm"] < cosines["post_norm"]


def test_dragging_and_arrow_keys_turn_all_spheres(page):
    before, other = page.evaluate("normlabSphere.view.yaw"), _pixels(page, 3)
    page.locator("#sphere-grid canvas").first.scroll_into_view_if_needed()
    box = page.locator("#sphere-grid canvas").first.bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 110, steps=5)
    page.mouse.up()
    turned = page.evaluate("normlabSphere.view.yaw")
    assert turned == pytest.approx(before + 0.8, abs=0.02)
    assert _pixels(page, 3) != other
    page.locator("#sphere-grid canvas").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("normlabSphere.view.yaw") == pytest.approx(turned + 0.1)
    page.click("#sphere-reset")
    assert page.evaluate("normlabSphere.view.yaw") == pytest.approx(page.evaluate("normlabSphere.home.yaw"))


def test_dark_and_narrow(page):
    page.click("#theme")
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert _pixels(page, 0)[0] > 500
