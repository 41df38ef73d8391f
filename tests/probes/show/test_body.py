"""The body: every flagged place is marked, by the worst that is said of it, and only by that."""

from dataclasses import replace

from normlab.probes.judge.verdicts import verdict
from normlab.probes.measure.table import BranchReading
from normlab.probes.show import figures
from normlab.probes.show.body import ALL, body_of, flagged, halves, marks, picture
from normlab.probes.show.page import build
from normlab.probes.show.text import as_text, body_lines
from tests.probes.show.test_figures import diagnosis

GAIN = verdict("gain_outlier", "warn", "a gain", value=9.0, limit=3.0, layers=(1, 2))
DEAD = verdict("dead_branches", "bad", "a branch", value=0.0, limit=0.1, layers=(2,))
SINKS = verdict("attention_sinks", "note", "sinks", value=0.5, limit=0.3, layers=(0, 1, 2, 3))
EMBEDDING = verdict("embedding_scale", "warn", "large", value=20.0, limit=12.0)
LOSS = verdict("miscalibrated", "warn", "too sure", value=2.0, limit=1.0)
GRADIENTS = verdict("gradient_imbalance", "note", "apart", value=20.0, limit=15.0)


def sick(*verdicts):
    return replace(diagnosis(), verdicts=verdicts)


def test_the_worst_that_is_said_of_a_layer_colours_it():
    body = body_of(sick(DEAD, GAIN, SINKS))
    assert body.places == ("embedding", "0", "1", "2", "3", "output")
    assert body.fares[ALL] == ("fine", "note", "warn", "bad", "note", "fine")
    assert body.fares["weights"] == ("fine", "fine", "warn", "warn", "fine", "fine")
    assert body.fares["branches"] == ("fine", "fine", "fine", "bad", "fine", "fine")
    assert "dead branches" in body.said[ALL][3]
    assert body.said["branches"][1] == "layer 0: nothing to say"


def test_what_names_no_layer_stands_at_an_end_or_everywhere():
    body = body_of(sick(EMBEDDING, LOSS, GRADIENTS))
    assert body.fares["embeddings"] == ("warn", *["fine"] * 5)
    assert body.fares["loss"] == (*["fine"] * 5, "warn")
    assert body.fares["gradients"] == ("fine", *["note"] * 4, "fine")


def test_notes_flag_nothing_and_marks_are_the_flagged_layers():
    assert flagged(sick(SINKS)) == {}
    assert flagged(sick(GAIN, DEAD, SINKS)) == {1: "warn", 2: "bad"}
    spans = [(shape["x0"], shape["x1"]) for shape in marks(sick(GAIN, DEAD))]
    assert spans == [(0.5, 1.5), (1.5, 2.5)]
    assert [shape["name"] for shape in marks(sick(GAIN, DEAD))] == ["flagged: warning", "flagged: fault"]


def test_the_picture_has_a_row_for_everything_that_is_said():
    drawn, height = picture(sick(DEAD, GAIN))
    assert drawn["data"][0]["y"] == [ALL, "branches", "weights"]
    assert [trace["name"] for trace in drawn["data"][1:]] == ["nothing to say", "warning", "fault"]
    assert picture(sick())[1] < height


def test_the_line_of_a_terminal():
    lines = body_lines(sick(DEAD, GAIN, EMBEDDING), 80)
    assert lines[1] == "in !   ·!X·   · out"
    assert lines[2].split("   ")[-3:] == [" · fine", "! warning", "X fault"]
    deep = replace(sick(DEAD), layers=tuple(replace(diagnosis().layers[0], layer=i) for i in range(200)))
    assert max(map(len, body_lines(deep, 80))) <= 80
    assert "layers a sign" in body_lines(deep, 80)[2]
    assert "X" in body_lines(deep, 80)[1]


def test_both_halves_of_a_model_have_a_body_of_their_own():
    encoder = replace(sick(GAIN), stack="encoder")
    both = tuple(replace(v, title=f"in the {half}, {v.title}") for half, v in (("encoder", GAIN), ("decoder", DEAD)))
    whole = replace(sick(*both), stack="decoder", more=(encoder,))
    first, second = halves(whole)
    assert (first.name, second.name) == ("one, encoder", "one, decoder")
    assert flagged(first) == {1: "warn", 2: "warn"}
    assert flagged(second) == {2: "bad"}
    text = as_text(whole, width=80)
    assert text.count("layer  0") == 2
    assert text.count("in the decoder, a branch") == 1
    page = build([whole]).render()
    assert page.count("The body of one, ") >= 2
    assert "4 encoder + 4 decoder layers" in page


def test_cross_attention_is_a_column_and_a_line_of_its_own():
    cross = BranchReading("cross_attention", 0, 3.0, 0.25, 0.1, 0.25)
    rows = tuple(replace(row, attention_norm=1.0, attention_ratio=0.5, others=(cross,)) for row in diagnosis().layers)
    text = as_text(diagnosis(rows=rows))
    assert "cross-attention/h" in text
    assert "cross-attention / stream" in text
    drawn = figures.per_layer([diagnosis(rows=rows)], figures.branch_plot([diagnosis(rows=rows)]))
    lines = [trace["name"] for trace in drawn["data"] if "fill" not in trace]
    assert lines == ["attention", "cross-attention"]
