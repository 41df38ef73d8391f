"""The demo's settings are what was promised, and its summary has ten lines."""

from pathlib import Path

from normlab.cli.demo import SETTINGS, summary
from normlab.experiments.compare import CompareConfig


def test_settings():
    config = CompareConfig(**SETTINGS)
    assert config.schemes == ("post_norm", "pre_norm", "peri_norm", "ln_scaling", "block_attn_res")
    assert config.depths == (24,)
    assert config.seeds == 2
    assert config.task.task == "text"


def test_ten_lines():
    rows = [
        {"scheme": name, "mean": None if name == "post_norm" else 2.5, "lr": 1e-3, "cost": {"time": 1.4}}
        for name in SETTINGS["schemes"]
    ]
    claims = [{"verdict": "undecided"}, {"verdict": "confirmed"}]
    setting = {"answer": ["one.", "two.", "three."], "schemes": rows, "claims": claims}
    lines = summary({"settings": [setting]}, Path("report.html"), Path("diagnosis.html"))
    assert len(lines) == 10
    assert "diverged" in lines[3]
    assert "step time 1.40" in lines[4]
    assert "1 confirmed, 0 refuted, 1 undecided" in lines[8]
    assert "report.html" in lines[9]
