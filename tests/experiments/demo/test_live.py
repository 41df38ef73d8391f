"""The view of runs while they train: one scale for all, nothing said before there is anything."""

import json

from normlab.experiments.demo.live import Watched, view


def write(folder, shares, loss, warmup=0):
    folder.mkdir()
    records = [
        {"kind": "train", "step": 5, "loss": 3.0, "grad_norm": 1.0},
        {"kind": "validation", "step": 5, "loss": loss},
        {"kind": "layers", "step": 5, "effect": [1.0, 2.0, 0.1, 0.3], "gradient_share": shares},
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    run = Watched("pre_norm", folder, 10, warmup)
    run.log.read()
    return run


def test_one_scale_for_all(tmp_path):
    runs = [write(tmp_path / "a", [0.5, 0.5], 3.0), write(tmp_path / "b", [0.001, 0.999], 2.0, warmup=5)]
    lines = [line.plain for line in view(runs)]
    assert len(lines) == 6
    assert "step    5/10  held-out loss 3.00" in lines[0]
    assert lines[3].startswith("pre_norm + warm-up  step")
    assert "layer 1: 1.5, layer 2: 0.2 of what the head reads" in lines[1], "the mean of attention and FFN"
    assert lines[2].split()[1] != "▁▁", "0.5 is not the lowest of all runs"
    assert lines[5].split()[1] == "▁█"


def test_before_the_first_record(tmp_path):
    lines = [line.plain for line in view([Watched("post_norm", tmp_path, 10)])]
    assert "waiting" in lines[0]
    assert lines[1].strip() == "effect"
