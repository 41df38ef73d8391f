"""Rows over seeds: medians with ranges, from made-up scores."""

from normlab.experiments.lengthgen.analyse import closed_form, summarise
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.lengthgen.result import Arm, ScoreRow, Spread, SummaryRow
from normlab.experiments.runs.records import LengthScore
from normlab.results import as_row
from normlab.tasks import task

ARM = Arm("nope", "none", 8, 8, 1e-3, "pre_norm")


def test_summaries_are_medians_with_ranges():
    found = zip((0.5, 0.1, 0.3), ("diverged", "finished", "finished"), strict=True)
    rows = [ScoreRow(ARM, i, "raw", 4, status, LengthScore(tv=tv)) for i, (tv, status) in enumerate(found)]
    (line,) = summarise(rows)
    assert line.metrics == {"tv": Spread(0.3, 0.1, 0.5)}
    assert (line.diverged, line.seeds) == (1, 3)
    assert as_row(line)["tv_high"] == 0.5


def test_the_laws_are_brought_to_the_first_scheme():
    request = LengthgenRequest(task=task("set_complement", vocab=8), train_length=4)
    here = SummaryRow(ARM, "raw", 4, 1, 0, {"tv": Spread(0.2, 0.2, 0.2)})
    laws = closed_form(request, [here])
    assert [round(law.tv, 9) for law in laws if law.length == 4] == [0.2]
    far = SummaryRow(ARM, "raw", 4, 1, 0, {"tv": Spread(0.9, 0.9, 0.9)})  # worse than knowing nothing: no law has it
    assert closed_form(request, [far]) == []
