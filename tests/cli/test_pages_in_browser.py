"""Every page that a command writes, in a real browser: silent, from disk, the answer first, every label readable.

Those of compare, stability, atlas and demo have tests of their own (tests/experiments/test_pages_in_browser.py), so have
`watch` (tests/ui), the spheres (tests/dynamics), one diagnosis (tests/probes/show) and the site.
"""

import pytest

from normlab.cli import run
from tests.labels import trouble
from tests.printed import tiny_llama

pytestmark = pytest.mark.slow
SMALL = ["--depth", "8", "--dim", "16", "--tokens", "8"]
COMMANDS = {
    "claims": (["claims"], "index.html"),
    "seesaw": (["theory", "seesaw", *SMALL, "--draws", "2"], "seesaw.html"),
    "contributions": (
        ["theory", "contributions", "--depth", "16", "--dim", "16", "--tokens", "8"],
        "contributions.html",
    ),
    "signal": (["theory", "signal", "--layers", "8", "--d", "16", "--seeds", "1"], "signal.html"),
    "mean-field": (["theory", "mean-field", "--dim", "16", "--draws", "1", "--depths", "2,4"], "mean-field.html"),
    "bridge": (["theory", "bridge", "--schemes", "pre_norm,post_norm", "--dim", "32", "--depth", "4"], "bridge.html"),
    "dynamics": (["dynamics", "--n", "32"], "dynamics.html"),
    "lengthgen": (["lengthgen", "--task", "tomita", "--steps", "20", "--seeds", "2"], "report.html"),
    "change": (["diagnose", "one", "two", "--windows", "2", "--window", "32"], "report.html"),
}
FOUND = {"claims-000": ("claims", "seed-000.html"), "claims-002": ("claims", "seed-002.html")}
NAMES = [*COMMANDS, *FOUND]
FOCUS = """() => {
  const e = document.activeElement, plain = e === document.body || e.className === "skip";
  return [[...document.querySelectorAll("*")].indexOf(e), plain || getComputedStyle(e).outlineStyle !== "none"];
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """pages(name): its file; a command is run once."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}

    def page(name):
        owner, file = FOUND.get(name, (name, COMMANDS.get(name, (None, ""))[1]))
        if owner not in made:
            command, _ = COMMANDS[owner]
            if owner == "change":
                models = {word: two_models(folder / word, word) for word in ("one", "two")}
                command = [str(models.get(word, word)) for word in command]
            assert run([*command, "--out", str(folder / owner)]) == 0
            made[owner] = folder / owner
        return made[owner] / file

    return page


def two_models(folder, name):
    """The same model, and the same with one matrix changed."""
    from safetensors.torch import load_file, save_file

    tiny_llama(folder)
    if name == "two":
        weights = load_file(folder / "model.safetensors")
        weights["model.layers.1.mlp.down_proj.weight"] *= 3
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_silent_and_the_answer_first(opened, pages, name):
    tab = opened(pages(name))
    assert tab.locator("p.lead").first.bounding_box()["y"] < 300
    picture = tab.locator(".plot, .counts, .spheres").first.bounding_box()
    assert picture["y"] < 700, "its picture is on the first screen"
    if tab.locator("table").count():
        assert tab.locator("table").first.bounding_box()["y"] > picture["y"], "tables come last"
    assert tab.locator("summary").count() > 0, "how to read this"
    assert tab.trouble == []
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", NAMES)
def test_every_label_can_be_read(opened, pages, name, width, scheme):
    tab = opened(pages(name), width=width, scheme=scheme)
    assert trouble(tab) == []
    tab.close()


def test_by_keyboard_alone(opened, pages):
    """Tab reaches every control, one can see where, and Enter and Space work."""
    tab = opened(pages("claims-000"))
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "To the content", "first the way past the contents"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left") >= 0, "it shows when it has the focus"
    wanted = tab.locator("button, a, summary, .scroll, input, select").count()
    reached = set()
    for _ in range(wanted + 5):
        at = tab.evaluate(FOCUS)
        reached.add(at[0])
        assert at[1], "the focus can be seen"
        tab.keyboard.press("Tab")
    assert len(reached) >= wanted
    tab.locator("summary").first.focus()
    tab.keyboard.press("Enter")
    assert tab.locator("details").first.get_attribute("open") is not None
    tab.locator("#theme").focus()
    tab.keyboard.press("Space")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    tab.close()


@pytest.mark.parametrize("name", ["claims-000", "seesaw", "dynamics"])
def test_on_paper(opened, pages, name, tmp_path):
    """Light, with everything open, without buttons; nothing is wider than the sheet."""
    tab = opened(pages(name), scheme="dark", width=794)
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert tab.evaluate("[...document.querySelectorAll('details')].every(d => d.open)")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.locator("button:visible").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    tab.close()
