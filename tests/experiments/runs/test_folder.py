"""The folder of a run: damage is one sentence, and what is finished is only read."""

import pytest

from normlab.errors import DamagedError, InputError
from normlab.experiments.runs.folder import prepare
from tests.experiments.tiny import alone, sweep_of, tiny


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_finished_run_is_only_read(tmp_path):
    """So that it may lie in a read-only folder."""
    folder = prepare(tmp_path / "run", tiny())
    first = alone(folder)
    (folder / ".lock").unlink()
    before = names(folder)
    assert alone(folder) == first
    assert sweep_of(tmp_path).run({"run": tiny()}, what="test") == [first]
    assert names(tmp_path / "run") == before
    assert not (tmp_path / ".lock").exists()


SUMMARIES = {
    "null": b"null",
    "list": b"[]",
    "no status": b"{}",
    "binary": b"\xff\xfe",
    "a status of 3": b'{"status": 3}',
    "cut": b'{"st',
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_damaged_summary_is_one_sentence(tmp_path, name):
    folder = prepare(tmp_path, tiny())
    (folder / "summary.json").write_bytes(SUMMARIES[name])
    with pytest.raises(DamagedError, match=r"summary\.json.*delete that file") as caught:
        alone(folder)
    assert "\n" not in str(caught.value)


def test_a_changed_number_is_seen(tmp_path):
    folder = prepare(tmp_path, tiny())
    alone(folder)
    path = folder / "summary.json"
    path.write_text(path.read_text().replace('"step": 8', '"step": 9'))
    with pytest.raises(DamagedError, match="checksum"):
        alone(folder)


def test_a_log_that_was_cut_after_the_end_is_seen(tmp_path):
    folder = prepare(tmp_path, tiny())
    run = alone(folder)
    assert len(run.training()) == 8
    log = folder / "log.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-3]))
    with pytest.raises(DamagedError, match=r"log\.jsonl.*bytes, and had"):
        alone(folder).training()


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "log.jsonl", "checkpoint", ".lock"])
def test_links_are_refused_and_what_they_point_to_stays(tmp_path, name):
    folder = prepare(tmp_path / "run", tiny())
    outside = tmp_path / "outside"
    if name == "checkpoint":
        outside.mkdir()
    else:
        outside.write_text("precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(InputError, match="is a link"):
        alone(folder)
    assert list(outside.iterdir()) == [] if name == "checkpoint" else outside.read_text() == "precious"
