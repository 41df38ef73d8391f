"""A misspelt name is answered at once, with the nearest that exists."""

import time

import huggingface_hub
import pytest

from normlab.errors import InputError
from normlab.probes.inputs.hub import load
from normlab.probes.inputs.places import must_load_from_cache, there_is_none


@pytest.fixture
def beside(tmp_path, monkeypatch):
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "model.gguf").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_nearest_folder_is_named(beside):
    assert "did you mean 'smollm2'?" in str(there_is_none("smolm2"))
    assert f"did you mean '{beside}/smollm2'?" in str(there_is_none(str(beside / "smolm2")))
    assert "did you mean 'modle.gguf'" not in str(there_is_none("modle.gguf"))
    assert "did you mean 'model.gguf'?" in str(there_is_none("modle.gguf"))
    assert "did you mean" not in str(there_is_none("entirely-different"))
    assert "nor a folder" in str(there_is_none("nowhere/model"))


def test_a_misspelt_folder_answers_at_once(beside):
    start = time.monotonic()
    with pytest.raises(InputError, match=r"there is no folder 'smolm2' here; did you mean 'smollm2'\?"):
        load("smolm2")
    assert time.monotonic() - start < 15  # transformers would ask the network six times


def refuse(error):
    def model_info(self, source, timeout):
        assert timeout <= 10
        raise error

    return model_info


def test_what_the_hub_says_is_told(beside, monkeypatch):
    api = huggingface_hub.HfApi
    response = type("Response", (), {"headers": {}, "request": None, "status_code": 404})()
    missing = huggingface_hub.errors.RepositoryNotFoundError("404", response=response)
    for error, said in ((missing, "has no public model of that name"), (ConnectionError("no route"), "no route")):
        monkeypatch.setattr(api, "model_info", refuse(error))
        with pytest.raises(InputError, match=said):
            must_load_from_cache("somebody/smolm2")


def test_a_copy_on_this_disk_serves_without_a_network(monkeypatch):
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse(ConnectionError("no route")))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda source, name: "/cache/config.json")
    assert must_load_from_cache("somebody/model") is True
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, source, timeout: None)
    assert must_load_from_cache("somebody/model") is False
