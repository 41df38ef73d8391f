"""The pages that the site is made of; `make docs` builds it, executes the tutorials, and is strict."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from tools.site import choose, hero, ledger, notebooks, reference, schemes, verdicts
from tools.site.__main__ import ROOT_PAGES, relinked
from tools.site.drawing import Line, Panel, picture

from normlab.experiments.atlas.measure import measure
from normlab.experiments.atlas.request import AtlasRequest
from normlab.probes.judge.advice import TEXTS
from normlab.schemes import SCHEMES

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def atlas():
    request = AtlasRequest(
        schemes=("pre_norm", "no_norm", "attn_res"), depth=schemes.DEPTH, dim=16, batch=1, length=8, rounds=1
    )
    return {entry.scheme: entry for entry in measure(request, quiet=True).entries}


def test_every_verdict_has_a_page_with_its_three_parts():
    pages = dict(verdicts.pages())
    for id in TEXTS:
        text = pages[f"verdicts/{id}.md"]
        assert all(part in text for part in ("## What it means", "## How it looks", "## What to do")), id
        assert "It judged" in text, f"{id} has no planted example"
        assert f"({id}.md)" in pages["verdicts/index.md"]


def test_every_scheme_has_a_page_and_its_picture(atlas):
    pages = dict(schemes.pages(atlas))
    assert {path.removeprefix("schemes/").removesuffix(".md") for path in pages} == {"index", *SCHEMES}
    assert all(f"# {name}\n" in pages[f"schemes/{name}.md"] for name in SCHEMES)
    assert "<svg" in pages["schemes/attn_res.md"]
    assert "Claims of the field" in pages["schemes/pre_norm.md"]
    assert "- each branch's share" in pages["schemes/pre_norm.md"], "its trap"


def test_every_claim_has_its_anchor():
    pages = dict(ledger.pages())
    for entry in ledger.book().entries:
        assert f"{{#{entry.claim.id}}}" in pages[f"claims/{entry.claim.seed}.md"]
    assert ledger.book().answer in pages["claims/ledger.md"]


def test_a_claim_in_a_sentence_carries_its_verdict():
    text = ledger.linked("Late layers are small (claim 001-17).", up="../")
    assert text == "Late layers are small ([001-17](../claims/001.md#001-17), confirmed)."


def test_every_line_of_the_guide_rests_on_something():
    source = choose.TEMPLATE.read_text(encoding="utf-8")
    for line in source.splitlines():
        if line.startswith(("- ", "| [")):
            assert re.search(r"\{claims:|\]\([\w/]+\.md", line), line
    ids = [id for part in re.findall(r"\{claims:([^}]+)\}", source) for id in part.split(",")]
    known = {entry.claim.id for entry in ledger.book().entries}
    assert set(ids) <= known
    page = choose.page()
    assert "{" not in page
    assert all(f"#{id})" in page for id in ids)


def test_the_guide_says_that_no_placement_is_shown_to_beat_pre_norm():
    stored = choose.page()
    assert "No placement has been shown to beat Pre-Norm at a fair start" in stored
    assert "-0.119" in stored
    assert "taken back" in stored


def test_withdrawn_and_limited_claims_stand_without_a_verdict():
    lists = choose._groups(["000-22", "001-05", "001-13"])
    holds, limited, withdrawn = lists.split("**")[2::2]
    assert "001-13" in holds
    assert "confirmed" in holds
    assert "001-05" in limited
    assert "Limit: without warm-up" in limited
    assert "000-22" in withdrawn
    assert not re.search("confirmed|refuted|undecided", limited + withdrawn)
    assert ledger.linked("x (claim 002-13), y (claim 001-12)").count("confirmed") == 0


def test_the_guide_in_the_repository_is_the_same():
    text = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
    assert text == choose.in_the_repository(choose.page()), "run `python tools/claims_table.py`"
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / "docs" / target).exists(), target


def test_what_is_not_settled_is_said_to_be(monkeypatch):
    lists = choose._groups(["000-24"])
    assert lists.startswith("**Not settled**")


def test_every_public_name_has_a_place_in_the_reference():
    import normlab as nl

    assert reference.covered() == set(nl._EXPORTS)
    pages = dict(reference.pages())
    assert "::: normlab.model.transformer.Transformer\n" in pages["reference/schemes.md"]


def test_links_of_root_files_are_rewritten():
    assert relinked("[a](docs/x.md) [b](LOG.md) [c](src/normlab/y.py)") == "[a](x.md) [b](log.md) `c`"
    assert all((ROOT / name).exists() for name in ROOT_PAGES)


def test_pictures_are_xml_and_stay_inside(atlas):
    drawn = picture([Panel("size", [Line([1.0, None, 3.0], "#fff")], layers=3)], label='a "b" <c>')
    assert ET.fromstring(drawn).get("aria-label") == 'a "b" <c>'
    whole = ET.fromstring(hero.draw(list(atlas.values())))
    width, height = float(whole.get("width")), float(whole.get("height"))
    for text in whole.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(text.get("x")) <= width
        assert 0 <= float(text.get("y")) <= height


def test_labels_are_moved_apart():
    found = hero.spread([(10.0, "a"), (11.0, "b"), (99.0, "c"), (100.0, "d")], low=0.0, high=100.0)
    heights = [y for y, _ in found]
    assert all(later - earlier >= 12.9 for earlier, later in pairwise(heights))
    assert max(heights) <= 100.0


def test_a_tutorial_is_executed_and_a_failing_cell_stops_the_build(tmp_path):
    (tmp_path / "one.py").write_text("# %% [markdown]\n# # Title\n\n# %%\nprint(6 * 7)\n")
    text = notebooks.as_markdown(notebooks.execute(tmp_path / "one.py", tmp_path / "a"), source="one")
    assert text.startswith("# Title\n\n```python\nprint(6 * 7)\n```\n\n```{.text .output}\n42\n```")
    (tmp_path / "two.py").write_text("# %%\nraise ValueError('no')\n")
    with pytest.raises(Exception, match="ValueError"):
        notebooks.execute(tmp_path / "two.py", tmp_path / "b")


def test_the_tutorials_are_those_of_the_table_of_contents():
    assert {path.stem for path in notebooks.tutorials()} == {"diagnose", "own-loop", "swap", "theory"}
