"""`normlab theory seesaw`: numbers, sentence and page agree."""

import json

from typer.testing import CliRunner

from normlab.cli import app
from normlab.errors import ConfigError

SMALL = ["theory", "seesaw", "--depth", "4", "--dim", "16", "--tokens", "4", "--draws", "2"]


def test_json_and_page(tmp_path):
    ran = CliRunner().invoke(app, [*SMALL, "--out", str(tmp_path), "--json"])
    assert ran.exit_code == 0, ran.output
    pre, post = json.loads(ran.stdout)["schemes"]
    assert [pre["scheme"], post["scheme"]] == ["pre_norm", "post_norm"]
    assert len(pre["stream"]) == len(post["gradient"]) == 4
    page = (tmp_path / "seesaw.html").read_text()
    assert pre["sentence"].split(":")[0] in page


def test_an_unknown_scheme_is_told(tmp_path):
    ran = CliRunner().invoke(app, ["theory", "seesaw", "--schemes", "pre_nrom", "--out", str(tmp_path)])
    assert isinstance(ran.exception, ConfigError)  # which the program turns into one sentence
    assert "did you mean 'pre_norm'" in str(ran.exception)
