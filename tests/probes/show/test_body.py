"""The body: every flagged place is marked, by the worst that is said of it, and only by that."""

from dataclasses import replace

from normlab.probes.judge.verdicts import verdict
from normlab.probes.show.body import ALL, body_of, flagged, marks, picture
from normlab.probes.show.text import body_lines
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
