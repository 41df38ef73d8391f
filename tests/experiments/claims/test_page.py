import math

from normlab.experiments.claims import book
from normlab.experiments.claims.criteria import Reading
from normlab.experiments.claims.page import picture, write_pages


def test_pages_have_a_picture_for_each_decided_claim(tmp_path):
    whole = book.claims(nulls=False)
    index = write_pages(whole, tmp_path)
    text = index.read_text()
    assert 'href="seed-003.html"' in text
    page = (tmp_path / "seed-003.html").read_text()
    drawn = [e for e in whole.of_seed("003").entries if e.decision.finding is not None]
    assert page.count('class="strip"') >= len(drawn)
    assert page.index('class="counts"') < page.index('class="strip"') < page.index("<table"), "tables come last"
    assert len(page) < 300_000, "no plots, no script of theirs"
    for entry in whole.of_seed("003").entries:
        assert entry.claim.id in page
        assert entry.claim.command in page


def test_a_picture_shades_the_range_and_survives_infinities():
    readings = [
        Reading("a", 1.0, 0.5, 1.5, (-math.inf, 2.0), 3, 0.01, 1.0),
        Reading("b", math.nan, None, None, (0.0, 1.0), 3, 1.0, 1.0),
    ]
    drawn = picture(readings, "#000000")
    assert drawn.count('class="strip"') == drawn.count('class="claimed"') == 2
    assert drawn.count('class="mean"') == drawn.count('class="reach"') == 1, "the second has no number"
    assert "inf" not in drawn.partition("wanted")[0]
