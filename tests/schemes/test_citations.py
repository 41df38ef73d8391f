from normlab.schemes.citations import entries, entry


def test_authors_year_title_and_number():
    found = entry("deep_norm").bibtex
    assert "author = {Wang and others}" in found
    assert "year = {2022}" in found
    assert "title = {DeepNet}" in found
    assert "eprint = {2203.00555}" in found


def test_two_authors_and_no_title():
    found = entry("pre_norm").bibtex
    assert "author = {Baevski and Auli}" in found
    assert "title = {pre\\_norm}" in found


def test_what_has_no_paper_says_where_it_ships():
    found = entry("independent_hc")
    assert "transformers" in found.bibtex
    assert "eprint" not in found.bibtex


def test_families_are_spread():
    assert {e.scheme for e in entries(["multi-stream"])} >= {"mhc", "hyper_connections"}
