"""The measuring itself, and that every benchmark can be found. Nothing here is timed against a limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks import model, timing
from benchmarks.__main__ import names
from normlab.observe.timing import Times

ROOT = Path(__file__).parents[2]


def test_ratios_are_taken_within_rounds() -> None:
    """The machine is ten times slower in the last round; the ratio does not see it."""
    rounds = {
        "ours": Times((1.0, 2.0, 30.0), (1.0, 1.0, 1.0)),
        "peer": Times((2.0, 4.0, 60.0), (4.0,) * 3),
    }
    found = timing.ratios(rounds, "ours")
    assert found["peer"] == {
        "milliseconds": 4000.0,
        "ratio": 0.5,
        "ratio_low": 0.5,
        "ratio_high": 0.5,
        "processor_ratio": 0.25,
    }
    assert found["ours"]["ratio"] == 1.0


def test_the_hand_written_model_computes_the_same_function() -> None:
    """Else the price of the abstraction would be measured against something cheaper."""
    shape = model.Shape(depth=2, dim=32, heads=4, length=9, batch=2, vocab=31)
    theirs, ours = model.HandWritten(shape), model.ours(shape)
    weights = {"embedding.weight": theirs.embedding.weight, "scheme.final.weight": theirs.norm.weight}
    for index, layer in enumerate(theirs.layers):
        weights |= {
            f"scheme.pre.{2 * index}.weight": layer.attention_norm.weight,
            f"scheme.pre.{2 * index + 1}.weight": layer.ffn_norm.weight,
            f"branches.{2 * index}.qkv.weight": layer.qkv.weight,
            f"branches.{2 * index}.out.weight": layer.out.weight,
            f"branches.{2 * index + 1}.up.weight": layer.up.weight,
            f"branches.{2 * index + 1}.down.weight": layer.down.weight,
        }
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_(std=32**-0.5 if weight.dim() > 1 else 1.0)
    ours.load_state_dict(weights)
    tokens = torch.randint(0, 31, (2, 9))
    assert theirs(tokens).std() > 0.1
    torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=0, atol=1e-5)


def test_every_benchmark_is_found_and_prints_json() -> None:
    assert {"model", "norms"} <= set(names())
    assert "timing" not in names()
    command = [sys.executable, "-m", "benchmarks", "norms", "--json", "--rounds", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["norms"]
    assert found["4 x 256 x 256"]["torch rms_norm"]["ratio"] > 0


def test_an_unknown_benchmark_is_named() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "modle"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no benchmark called modle" in done.stderr
    assert "Traceback" not in done.stderr
