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
    assert page.count('id="figure') >= len(drawn) or page.count('"data":[') >= len(drawn)
    for entry in whole.of_seed("003").entries:
        assert entry.claim.id in page
        assert entry.claim.command in page


def test_a_picture_shades_the_range_and_survives_infinities():
    readings = [
        Reading("a", 1.0, 0.5, 1.5, (-math.inf, 2.0), 3, 0.01, 1.0),
        Reading("b", math.nan, None, None, (0.0, 1.0), 3, 1.0, 1.0),
    ]
    drawn, height = picture(readings, "#000000")
    assert len(drawn["data"]) == len(drawn["layout"]["shapes"]) == 2
    first = drawn["layout"]["shapes"][0]
    assert first["x1"] == 2.0
    assert math.isfinite(first["x0"])
    assert drawn["data"][0]["error_x"]["array"] == [0.5]
    assert drawn["data"][1]["x"] == [None]
    assert height > 100
