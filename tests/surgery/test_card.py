"""Which Auto class a card names."""

import pytest

from normlab.surgery.card import auto_class


@pytest.mark.parametrize(
    ("base", "auto"),
    [("LlamaForCausalLM", "AutoModelForCausalLM"), ("GPT2LMHeadModel", "AutoModelForCausalLM"),
     ("BertForMaskedLM", "AutoModelForMaskedLM"), ("LlamaModel", "AutoModel"),
     ("BertForSequenceClassification", "AutoModelForSequenceClassification")],
)  # fmt: skip
def test_auto_class(base, auto):
    assert auto_class(base) == auto
