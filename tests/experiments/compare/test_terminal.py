from normlab.experiments.compare.result import Comparison
from normlab.experiments.compare.terminal import FEW, show
from tests.experiments.compare.rows import BASE, answered, row


def shown(capsys, count, notes=()):
    rows = [row("pre_norm", BASE), *(row(f"other{i}", BASE, BASE) for i in range(count - 1))]
    show(Comparison(list(notes), [answered(*rows)], []))
    return capsys.readouterr().out


def test_notes_then_the_answer_then_a_table(capsys):
    said = shown(capsys, 2, notes=["[1] is not finished"])
    assert said.index("[1] is not finished") < said.index("The answer.") < said.index("┏")
    assert "params (M)" not in said  # the page has it


def test_many_schemes_leave_their_sentences_to_the_page(capsys):
    assert "- other0 was measured." in shown(capsys, FEW)
    many = shown(capsys, FEW + 1)
    assert "was measured." not in many
    assert f"other{FEW - 1}" in many
