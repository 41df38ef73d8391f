"""`normlab diagnose` from end to end on small saved models, and one sentence for every kind of bad input."""

import csv
import io
import json
from dataclasses import replace

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from normlab.cli import run

WORDS = (
    *("the", "of", "a", "to", "and", "in", "that", "it", "is", "was", "he", "for", "as", "on", "with"),
    *("his", "be", "at", "by", "i", "this", "had", "not", "are", "but", "from", "or", "have"),
)


def save_tokenizer(folder, size=40):
    vocabulary = {"[UNK]": 0, "[MASK]": 1, **{word: i + 2 for i, word in enumerate(WORDS)}}
    vocabulary |= {f"w{i}": len(vocabulary) + i for i in range(size - len(vocabulary))}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", mask_token="[MASK]").save_pretrained(
        folder
    )


def save_model(folder, kind="LlamaForCausalLM", config="LlamaConfig", vocabulary=40, **options):
    torch.manual_seed(0)
    shape = {"vocab_size": vocabulary, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
             "intermediate_size": 48, "max_position_embeddings": 128}  # fmt: skip
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**shape, **options}))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "llama"
    save_model(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    generator = torch.Generator().manual_seed(0)
    path.write_text(" ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (600,), generator=generator).tolist()))
    return path


def diagnose(*arguments, out):
    return run(["diagnose", *map(str, arguments), "--out", str(out), "--window", "32", "--windows", "4"])


def test_a_folder_is_diagnosed_and_everything_is_written(llama, text, tmp_path, capsys):
    assert diagnose(llama, "--text", text, "--csv", tmp_path / "layers.csv", out=tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "3 x LlamaDecoderLayer, pre_norm" in shown
    assert "attention spread evenly" in shown  # random weights: attention is uniform
    assert max(len(line) for line in shown.splitlines() if not line.startswith("page: ")) <= 100
    found = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert found[0]["identity_error"] < 1e-4
    assert len(found[0]["layers"]) == 3
    rows = list(csv.DictReader(io.StringIO((tmp_path / "layers.csv").read_text())))
    assert [row["layer"] for row in rows] == ["0", "1", "2"]
    assert float(rows[1]["norm"]) == pytest.approx(found[0]["layers"][1]["norm"])
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("plotly.js v") == 1
    assert len(page) < 7_000_000
    assert "http-equiv" in page


def test_json_owns_stdout_and_strict_sets_the_exit_code(llama, text, tmp_path, capsys):
    assert diagnose(llama, "--text", text, "--json", "--no-html", out=tmp_path) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["placement"] == "pre_norm"
    assert found["loss"]["name"] == "causal"
    assert set(found["causal"]["correlation"]) >= {"block_influence", "ffn_ratio", "gradient_norm"}
    assert diagnose(llama, "--text", text, "--strict", "--no-html", out=tmp_path) == 1
    assert not (tmp_path / "report.html").exists()


def test_the_folder_of_the_report_is_asked_for_before_the_work(llama, text, tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    assert diagnose(llama, "--text", text, out=tmp_path / "taken" / "below") == 2
    shown = capsys.readouterr().err
    assert "nothing can be written to --out" in shown
    assert "loading" not in shown  # no model was read


def test_notes_do_not_fail_a_strict_run(monkeypatch, llama, text, tmp_path):
    from normlab.probes import examination as module

    judged = module.judge
    monkeypatch.setattr(module, "judge", lambda evidence: tuple(replace(v, severity="note") for v in judged(evidence)))
    assert diagnose(llama, "--text", text, "--strict", "--no-html", "--no-skips", out=tmp_path) == 0


def test_a_budget_of_seconds_leaves_out_and_says_so(llama, text, tmp_path, capsys):
    assert diagnose(llama, "--text", text, "--max-seconds", "600", "--json", "--no-html", out=tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
    assert diagnose(llama, "--text", text, "--max-seconds", "0", out=tmp_path) == 2


def test_two_checkpoints_of_one_model(llama, text, tmp_path, capsys):
    after = tmp_path / "after"
    model = save_model(after)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(30)
    model.save_pretrained(after)
    assert diagnose(llama, after, "--text", text, out=tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "layer 1 moved most" in " ".join(shown.split())
    assert max(len(line) for line in shown.splitlines() if not line.startswith("page: ")) <= 100
    held = json.loads((tmp_path / "out" / "change.json").read_text())
    assert held["layers"][0]["drift"] == 0
    assert held["layers"][1]["most"] == "mlp.down_proj"
    assert held["layers"][1]["most_drift"] == pytest.approx(29, rel=1e-4)
    assert "What changed" in (tmp_path / "out" / "report.html").read_text()
    assert diagnose(llama, after, "--text", text, "--json", "--no-html", "--no-skips", out=tmp_path / "out") == 0
    assert json.loads(capsys.readouterr().out)["headline"].startswith("The loss")


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_text_is_as_wide_as_the_terminal(llama, text, tmp_path, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert diagnose(llama, "--text", text, "--no-html", out=tmp_path) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("page: ")]
    assert width - 20 < max(map(len, lines)) <= width


def test_several_models_in_one_report(llama, text, tmp_path, capsys):
    save_model(tmp_path / "bert", "BertForMaskedLM", "BertConfig")
    assert diagnose(llama, tmp_path / "bert", "--text", text, "--no-skips", out=tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert any(line.startswith("bert") and "post_norm" in line for line in shown.splitlines())
    assert "not one before and after" in shown
    assert max(len(line) for line in shown.splitlines() if not line.startswith("page: ")) <= 100
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Side by side" in page


def test_token_ids_instead_of_text(llama, tmp_path, capsys):
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(torch.randint(0, 40, (200,)).tolist()))
    assert diagnose(llama, "--tokens", ids, "--no-html", out=tmp_path) == 0


def test_a_run_of_our_own(tmp_path, capsys):
    import normlab as nl
    from normlab.training import checkpoint

    config = nl.TransformerConfig(vocab_size=40, dim=32, depth=3, heads=4, scheme="peri_norm", max_length=128)
    model = nl.Transformer(config)
    folder = tmp_path / "run"
    checkpoint.save(folder / "checkpoint", 7, {"model": model.state_dict()}, {})
    (folder / "config.yaml").write_text(config.to_yaml())
    ids = tmp_path / "ids.txt"
    ids.write_text(" ".join(map(str, torch.randint(0, 40, (200,)).tolist())))
    assert diagnose(folder, "--tokens", ids, "--json", out=tmp_path / "out") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["placement"] == "peri_norm"
    assert found["notes"] == ["normlab run, step 7"]
    assert found["layers"][2]["norm"] > 0
    assert diagnose(folder, out=tmp_path / "out") == 2
    assert "pass token ids with --tokens" in capsys.readouterr().err


def test_the_encoder_of_t5(text, tmp_path, capsys):
    config = transformers.T5Config(vocab_size=40, d_model=32, num_layers=3, num_heads=4, d_kv=8, d_ff=48)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    save_tokenizer(tmp_path / "t5")
    assert diagnose(tmp_path / "t5", "--text", text, "--json", out=tmp_path / "out") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["layers"]) == 3
    assert "the encoder alone was read; the decoder half is not traced" in found["notes"]
    assert found["loss"]["name"] == "contrastive"


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "vit"
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.ViTConfig(**shape, image_size=16, patch_size=4)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]})
    )
    return folder


def test_a_vision_model_on_generated_images(vit, tmp_path, capsys):
    assert run(["diagnose", str(vit), "--json", "--out", str(tmp_path), "--windows", "16"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["placement"], len(found["layers"])) == ("pre_norm", 3)
    assert found["how"]["tokens"] == 16 * 17  # patches and [CLS]
    assert found["loss"]["name"] == "contrastive"
    assert len(found["causal"]["change"]) == 3
    assert any("--images FOLDER" in note for note in found["notes"])


def test_a_vision_model_on_a_folder_of_images(vit, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    from normlab.probes.inputs import images

    for i, colour in enumerate([(255, 0, 0), (0, 51, 255)]):
        image.new("RGB", (40, 20), colour).save(tmp_path / f"{i}.png")
    pixels = images.read_images(tmp_path, (3, 16, 16), count=8, scale=images.scaling(str(vit)))
    assert pixels.shape == (2, 3, 16, 16)
    assert pixels[1, :, 5, 5].tolist() == pytest.approx([0, 0.2, 1])
    assert run(["diagnose", str(vit), "--json", "--out", str(tmp_path / "out"), "--images", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["how"]["images"] == str(tmp_path)
    assert found["notes"] == []


def test_nan_weights_are_a_verdict_not_a_crash(text, tmp_path, capsys):
    model = save_model(tmp_path / "nan")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    assert diagnose(tmp_path / "nan", "--text", text, out=tmp_path / "out") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "[FAULT] numbers that are not finite: NaN or infinity in weights model.layers.1.mlp.down_proj.weight" in shown
    )


def bad(llama, vit, text, tmp_path):
    """name -> (arguments, what the one sentence must contain)."""
    empty, short, strange = tmp_path / "empty.txt", tmp_path / "short.txt", tmp_path / "strange"
    empty.write_text(" \n")
    short.write_text("the of a")
    strange.mkdir()
    (strange / "notes.txt").write_text("no model")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_bytes((llama / "config.json").read_bytes())
    torch.save({}, pickled / "pytorch_model.bin")
    remote = tmp_path / "remote"
    remote.mkdir()
    for file in llama.iterdir():
        (remote / file.name).write_bytes(file.read_bytes())
    config = json.loads((llama / "config.json").read_text())
    (remote / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    small = tmp_path / "small"
    save_model(small, vocabulary=20)
    bart = tmp_path / "bart"
    shape = {"vocab_size": 40, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
    ffn = {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    transformers.BartModel(transformers.BartConfig(**shape, **ffn)).save_pretrained(bart)
    flat = tmp_path / "flat"
    save_model(flat, num_hidden_layers=0)
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("wholly other words that this vocabulary has never seen before " * 20)
    torn = tmp_path / "torn"
    torn.mkdir()
    for file in llama.iterdir():
        (torn / file.name).write_bytes(file.read_bytes()[: 2000 if file.suffix == ".safetensors" else None])
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("1 2 three")
    return {
        "no model": ([strange, "--text", text], "is not a model folder"),
        "no folder": (["./nowhere", "--text", text], "there is no folder or file"),
        "misspelt": ([str(llama) + "a", "--text", text], "did you mean"),
        "empty text": ([llama, "--text", empty], "is empty"),
        "no text": ([llama, "--text", tmp_path / "missing.txt"], "cannot read the text"),
        "short text": ([llama, "--text", short], "less than one window of 32"),
        "pickle folder": ([pickled, "--text", text], "--allow-pickle"),
        "pickle file": ([pickled / "pytorch_model.bin", "--text", text], "pickle"),
        "remote code": ([remote, "--text", text], "--trust-remote-code"),
        "wrong tokenizer": ([small, "--text", text], "the tokenizer does not belong to this model"),
        "long window": ([llama, "--text", text, "--window", "512"], "pass --window 128"),
        "unknown loss": ([llama, "--text", text, "--loss", "causel"], "did you mean 'causal'?"),
        "bad tokens": ([llama, "--tokens", numbers], "cannot read token ids"),
        "unknown package": (["package:no-such-thing", "--text", text], "is not installed here"),
        "two texts": ([bart, "--text", text], "is an encoder-decoder (bart)"),
        "unknown id": (["no-such-user/no-such-model", "--text", text], "there is no folder 'no-such-user/"),
        "no repeated layers": ([flat, "--text", text], "has no repeated layers"),
        "another vocabulary": ([llama, "--text", foreign], "do not belong together"),
        "torn weights": ([torn, "--text", text], "could not be loaded"),
        "images for text": ([llama, "--text", text, "--images", tmp_path], "reads text"),
        "no images": ([vit, "--images", strange], "holds no images"),
        "no image folder": ([vit, "--images", tmp_path / "none"], "there is no folder"),
        "no device": ([llama, "--text", text, "--device", "tpu"], "unknown device"),
    }  # fmt: skip


def test_bad_input_is_one_clear_sentence(llama, vit, text, tmp_path, capsys):
    for name, (arguments, expected) in bad(llama, vit, text, tmp_path).items():
        extra = [] if "--window" in arguments else ["--window", "32"]
        code = run(["diagnose", *map(str, arguments), *extra, "--out", str(tmp_path / "out")])
        shown = capsys.readouterr()
        complaint = [line for line in shown.err.splitlines() if line.startswith("normlab: ")]
        assert code == 2, (name, shown.err)
        assert len(complaint) == 1, (name, shown.err)
        assert expected in complaint[0], (name, complaint)
        assert "Traceback" not in shown.err, name
        assert shown.out == "", name
