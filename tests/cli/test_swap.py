"""`normlab swap` and what it writes."""

import json
import resource

import pytest
import torch

from normlab.cli import run
from normlab.probes.inputs.hub import quiet
from tests.surgery.models import asked, build

transformers = pytest.importorskip("transformers")


def small_model(folder, *, seed=0):
    """A small Llama with a tokenizer of single bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: at for at, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    with quiet():
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    config = transformers.LlamaConfig(**{**build("llama").config.to_dict(), "vocab_size": 256})
    torch.manual_seed(seed)
    with quiet():
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def spoken(capsys, *arguments, code=0):
    assert run([*arguments]) == code
    said = capsys.readouterr()
    return said.out, said.err


def test_swap_writes_a_folder_that_loads(tmp_path, capsys):
    import normlab.hf  # noqa: F401

    source, out = small_model(tmp_path / "plain"), tmp_path / "swapped"
    said, _ = spoken(capsys, "swap", source, "block-attn-res(blocks=3)", "--out", str(out), "--window", "32", "--json")
    report = json.loads(said)
    assert report["preserved"]
    assert report["scheme"] == "block_attn_res(blocks=3)"
    assert report["loss_after"] == pytest.approx(report["loss_before"], abs=1e-5)
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ids = tokenizer("norms", return_tensors="pt")["input_ids"]
    plain = transformers.AutoModelForCausalLM.from_pretrained(source)
    torch.testing.assert_close(asked(model, {"input_ids": ids}), asked(plain, {"input_ids": ids}), atol=1e-5, rtol=1e-5)
    assert "import normlab.hf" in (out / "README.md").read_text()
    assert json.loads((out / "swap.json").read_text())["kind"] == "swap"


def test_a_model_without_a_tokenizer_is_checked_on_random_tokens(tmp_path, capsys):
    with quiet():
        build("llama").save_pretrained(tmp_path / "plain")
    said, _ = spoken(capsys, "swap", str(tmp_path / "plain"), "attn_res", "--out", str(tmp_path / "swapped"))
    assert "It computes the same function" in said
    assert "random tokens" in said
    assert (tmp_path / "swapped" / "model.safetensors").exists()


def test_strict_writes_nothing(tmp_path, capsys):
    source, out = small_model(tmp_path / "plain"), tmp_path / "swapped"
    said, _ = spoken(capsys, "swap", source, "peri_norm", "--out", str(out), "--window", "32", "--strict", code=1)
    assert "does NOT compute the same function" in said
    assert not out.exists()


def test_a_folder_is_the_old_one_until_the_new_one_is_whole(tmp_path, capsys, monkeypatch):
    source, out = small_model(tmp_path / "plain"), tmp_path / "swapped"
    small_model(out, seed=1)
    (out / "README.md").write_text("mine")
    old = {path.name: path.read_bytes() for path in out.iterdir()}
    command = ["swap", source, "attn_res", "--out", str(out), "--window", "32"]

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", full)
        _, error = spoken(capsys, *command, code=2)
    assert str(out) in error
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.name != ".lock"} == old
    spoken(capsys, *command)
    assert json.loads((out / "config.json").read_text())["normlab"]["scheme"]["name"] == "attn_res"
    assert (out / "README.md").read_text() == "mine"


@pytest.mark.parametrize("command", [("swap", "attn_res"), ("prune", "--layers", "1")])
def test_a_full_disk_is_one_sentence(tmp_path, capsys, command):
    """No file may grow: safetensors has an error of its own for that."""
    source, out = small_model(tmp_path / "plain"), tmp_path / "swapped"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        _, error = spoken(capsys, command[0], source, *command[1:], "--out", str(out), "--window", "32", code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "the weights cannot be written to" in error
    assert len(error.strip().splitlines()) == 1
    assert not (out / "config.json").exists()


def test_a_model_is_not_written_over_itself(tmp_path, capsys):
    source = small_model(tmp_path / "plain")
    for command in (["swap", source, "attn_res"], ["prune", source, "--layers", "1"], ["train", source, "steps=1"]):
        _, error = spoken(capsys, *command, "--out", source, code=2)
        assert "is the model that is read" in error


@pytest.mark.parametrize(
    ("scheme", "says"), [("ngpt", "reaches inside the branches"), ("attn_ress", "did you mean 'attn_res'")]
)
def test_bad_use_is_one_sentence(scheme, says, tmp_path, capsys):
    _, error = spoken(capsys, "swap", small_model(tmp_path / "plain"), scheme, "--window", "32", code=2)
    assert says in error
    assert len(error.strip().splitlines()) == 1


def test_diagnose_takes_the_folder(tmp_path, capsys):
    source, out = small_model(tmp_path / "plain"), tmp_path / "swapped"
    spoken(capsys, "swap", source, "attn_res", "--out", str(out), "--window", "32")
    said, _ = spoken(
        capsys, "diagnose", str(out), "--window", "32", "--windows", "2", "--max-length", "64", "--no-html",
        "--out", str(tmp_path / "found"), "--json",
    )  # fmt: skip
    assert "attn_res" in said


def test_train_takes_the_folder(tmp_path, capsys):
    """New parameters move, the loss is recorded, and what is written loads again."""
    import normlab.hf  # noqa: F401

    source, out, trained = small_model(tmp_path / "plain"), tmp_path / "swapped", tmp_path / "trained"
    spoken(capsys, "swap", source, "block_attn_res(blocks=3)", "--out", str(out), "--window", "32")
    said, _ = spoken(
        capsys, "train", str(out), "steps=6", "length=32", "lr=1e-3", "batch=4", "validate_every=3", "--out", str(trained),
        "--device", "cpu", "--json",
    )  # fmt: skip
    curve = json.loads(said)
    assert curve["steps"] == [0, 3, 6]
    assert curve["losses"][-1] < curve["losses"][0]
    model = transformers.AutoModelForCausalLM.from_pretrained(trained)
    assert float(model.scheme.queries.detach().abs().max()) > 0
    _, error = spoken(capsys, "train", str(out), "stepps=6", code=2)
    assert "stepps" in error
