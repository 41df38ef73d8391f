"""The terminal: what fits, what is left out, what is said of nothing."""

import math

from normlab.probes.diagnosis import Diagnosis, HowMeasured, Mixing
from normlab.probes.inputs.losses import LossReading
from normlab.probes.measure.summary import summarise
from normlab.probes.measure.table import LayerRow, StreamRow
from normlab.probes.show.text import as_text, compare_text, identity


def diagnosis(*, layers=3, error=2.5e-7, **more):
    rows = tuple(LayerRow(i, norm_median=2.0**i, ffn_ratio=0.125) for i in range(layers))
    return Diagnosis("model", "Layer", "pre_norm", False, error, StreamRow(), rows, summarise(rows), **more)


def test_the_table_has_the_columns_that_were_measured_and_bars_by_size():
    lines = as_text(diagnosis()).splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["layer", "|h|"])
    assert lines[head].split() == ["layer", "|h|", "ffn/h"]
    table = [line.split() for line in lines[head + 2 : head + 5]]
    assert [row[:3] for row in table] == [["0", "1", "0.125"], ["1", "2", "0.125"], ["2", "4", "0.125"]]
    assert len(table[0][3]) < len(table[2][3])


def test_the_header_says_the_loss_with_its_chance_and_the_identity():
    how = HowMeasured(parameters=1_500_000, width=64, tokens=256, window=32)
    text = as_text(diagnosis(how=how, loss=LossReading("causal", 2.0, 4.5747)))
    assert "1.5M parameters, d = 64" in text
    assert "causal loss 2.000 (chance 4.575)" in text
    assert "residual identity holds to 2.5e-07" in text
    assert "no sum of contributions" in identity(diagnosis(error=math.nan))
    assert text.splitlines()[0] == "Healthy"


def test_deep_models_and_their_mixing_fit_a_terminal():
    size = 241
    matrix = tuple(tuple(1.0 if i <= l else 0.0 for i in range(size)) for l in range(size))
    mixing = Mixing(matrix=matrix, reads=tuple(range(0, size - 1, 2)))
    text = as_text(diagnosis(layers=120, mixing=mixing))
    assert max(map(len, text.splitlines())) <= 100
    shown = [line for line in text.splitlines() if line.lstrip().startswith(("layer ", "head ")) and "█" in line]
    assert len(shown) <= 24
    assert shown[-1].split()[0] == "head"
    assert shown[-1].count("█") > shown[0].count("█")


def test_models_side_by_side_are_a_line_each():
    lines = compare_text([diagnosis(), diagnosis(layers=5)]).splitlines()
    assert len(lines) == 4
    assert lines[2].split()[:4] == ["model", "3", "pre_norm", "4"]  # growth 4 over three layers
    assert lines[3].split()[:4] == ["model", "5", "pre_norm", "16"]
