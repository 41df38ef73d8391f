"""`normlab prune` and what it writes."""

import json

import pytest

from tests.cli.test_swap import small_model, spoken

transformers = pytest.importorskip("transformers")


def test_prune_writes_a_folder_that_loads(tmp_path, capsys):
    source, out = small_model(tmp_path / "plain"), tmp_path / "pruned"
    arguments = ["--most", "1", "--heal", "5", "--window", "32", "--windows", "4", "--out", str(out), "--json"]
    said, _ = spoken(capsys, "prune", source, *arguments)
    report = json.loads(said)
    assert len(report["removed"]) == 1
    assert report["difference"] == 0
    assert report["loss_healed"] is not None
    assert transformers.AutoModelForCausalLM.from_pretrained(out).config.num_hidden_layers == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--layers", "7"], "there is no layer 7"),
        (["--layers", "0,1,2"], "leave at least one"),
        ([], "say which layers"),
    ],
)
def test_bad_use_is_one_sentence(arguments, says, tmp_path, capsys):
    source = small_model(tmp_path / "plain")
    _, error = spoken(capsys, "prune", source, *arguments, "--window", "32", "--out", str(tmp_path / "no"), code=2)
    assert says in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "no").exists()
