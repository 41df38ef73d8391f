"""Plain words: nothing that a reader sees has an underscore, and every column and verdict has a name."""

from dataclasses import fields

from normlab.probes.judge.advice import TEXTS
from normlab.probes.measure.table import LayerRow
from normlab.probes.show import words


def test_names_are_words_and_differ():
    columns = [words.column(field.name) for field in fields(LayerRow)]
    verdicts = [words.verdict_name(id) for id in TEXTS]
    for names in (columns, verdicts):
        assert len(set(names)) == len(names)
        assert not any("_" in name for name in names)
    assert words.branch("ffn") == "FFN"
    assert words.branch("cross_attention") == "cross-attention"
    assert words.subject("final_norm") == "final norm"
