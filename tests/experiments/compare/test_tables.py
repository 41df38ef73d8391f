import csv

from normlab.experiments.compare.result import Comparison
from normlab.experiments.compare.tables import markdown, runs_csv
from tests.experiments.compare.rows import BASE, answered, row


def test_a_section_for_each_setting_with_its_answer_and_statements():
    settings = [
        answered(row("pre_norm", BASE), row("keel", BASE, BASE), depth=depth, context_free_loss=3.25)
        for depth in (4, 6)
    ]
    text = markdown(Comparison(["Two runs are missing."], settings, []))
    assert text.startswith("Two runs are missing.\n")
    assert "## 4 layers of width 8\n\nThe answer." in text
    assert "## 6 layers of width 8\n" in text
    assert text.count("- keel was measured.") == 2
    assert text.count("Single tokens alone give 3.250.") == 2
    assert "tokens/s" not in text  # of the machine as it was


def test_rows_come_back_and_what_does_not_fit_into_a_cell_is_left_out():
    rows = list(csv.DictReader(runs_csv([row("pre_norm", BASE), row("keel", [2.5, 2.5, 2.5], BASE)]).splitlines()))
    assert [(line["scheme"], float(line["mean"])) for line in rows] == [("pre_norm", sum(BASE) / 3), ("keel", 2.5)]
    assert "losses" not in rows[0]
