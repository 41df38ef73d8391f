from normlab.experiments.stability.page import build, markdown, show, summary_rows
from normlab.experiments.stability.result import Edges, Point, Region, StabilityMap, WarmupLine

NONE = Edges({}, [], 0.0)
POINTS = [
    Point(1e-3, True, True, 0, 1, 2.0, ["stable"], 1.0),
    Point(1e-2, True, False, 0, 1, 3.0, ["flat"], 0.0),
    Point(1e-1, False, False, 1, 1, None, ["nan"], 4.0),
]


def region(scheme, which=""):
    line = WarmupLine(5, 1e-2, 1e-1, POINTS, 1e-3, 2.0, 1e-3, NONE, NONE, {}, usable=(1e-3, 2e-3))
    return Region(scheme, 4, which, 50, [line], 5, 3.0, learned=True)


def made(*regions, notes=()):
    return StabilityMap(list(notes), {"nan": "a loss is no number"}, list(regions), [], ["It is <so>."], [])


def test_the_table_by_hand():
    (row,) = summary_rows(made(region("post_norm")))
    assert (row["stable to"], row["unstable from"], row["learns to"], row["best loss"]) == (1e-2, 1e-1, 1e-3, 2.0)
    assert (row["usable"], row["gradient spikes"], row["widest"]) == ("0.001 to 0.002", 1.7, "<-")
    assert "map" not in row
    assert summary_rows(made(region("post_norm", "width 8")))[0]["map"] == "width 8"


def test_page_and_markdown_say_the_same_sentences():
    result = made(region("post_norm"), region("pre_norm"), notes=["Not finished."])
    text, kept = build(result).render(), markdown(result)
    assert "It is &lt;so&gt;." in text
    assert "post_norm, 4 layers" in text
    assert "a loss is no number" in text
    assert kept.startswith("Not finished.\n\n- It is <so>.\n")
    assert kept.count("0.001 to 0.002") == 2


def test_the_terminal_leaves_columns_to_the_page(capsys):
    show(made(region("post_norm")))
    said = capsys.readouterr().out
    assert "It is <so>." in said
    assert "gradient spikes" not in said
