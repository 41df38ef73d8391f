"""A swapped model stays a Hugging Face model: it saves, loads, generates, pickles and copies as one."""

import copy
import importlib
import json
import pickle
import subprocess
import sys

import pytest
import torch

import normlab as nl
from normlab.errors import InputError
from normlab.surgery.classes import auto_class, is_swapped
from tests.surgery.models import BACKBONES, asked, build, inputs, preserved_schemes, swapped

transformers = pytest.importorskip("transformers")
importlib.import_module("normlab.hf")  # registers the types


@pytest.fixture(autouse=True)
def _quiet():
    from normlab.probes.inputs.hub import quiet

    with quiet():
        yield


def automatic(model):
    name = type(model).__mro__[2].__name__
    return (
        transformers.AutoModelForTextEncoding if name == "T5EncoderModel" else getattr(transformers, auto_class(name))
    )


@pytest.mark.parametrize("name", BACKBONES)
def test_save_and_load_through_the_auto_classes(name, tmp_path):
    model, batch = swapped(name, "block_attn_res"), inputs(name)
    before = asked(model, batch)
    model.save_pretrained(tmp_path)
    again, info = automatic(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert type(again) is type(model)
    assert torch.equal(asked(again, batch), before)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["model_type"] == f"normlab_{type(build(name).config).model_type}"
    assert stored["normlab"]["version"] == nl.__version__


@pytest.mark.parametrize(
    "name", [n for n in BACKBONES if n not in ("bert", "roberta", "distilbert", "t5_encoder", "vit")]
)
def test_generate(name):
    """With every cache as without one; static caches where the unswapped model has them."""
    model, ids = swapped(name, "block_attn_res"), inputs(name)["input_ids"]
    how = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    wanted = model.generate(ids, use_cache=False, **how)
    assert torch.equal(model.generate(ids, **how), wanted)
    try:
        build(name).generate(ids, cache_implementation="static", **how)
    except (RuntimeError, ValueError):
        assert name in ("falcon_rw", "kimi_linear")  # ALiBi and recurrent states: transformers' own limits
    else:
        assert torch.equal(model.generate(ids, cache_implementation="static", **how), wanted)


@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_pickle_and_copies(name):
    model, batch = swapped(name, "block_attn_res"), inputs(name)
    before = asked(model, batch)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(asked(again, batch), before)
        with torch.no_grad():
            again.scheme.queries.add_(1.0)
        assert not torch.equal(asked(again, batch), before)  # its own scheme, not the old one's
    assert torch.equal(asked(model, batch), before)


SCRIPT = """
import sys, torch, normlab.hf
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
for folder in sys.argv[1:]:
    auto = AutoModelForMaskedLM if "bert" in folder else AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    kept = torch.load(folder + "/kept.pt")
    with torch.no_grad():
        assert torch.equal(model(kept["ids"]).logits, kept["logits"]), folder
print("same", len(sys.argv) - 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_every_preserved_scheme_loads_in_a_fresh_process(name, tmp_path):
    folders = []
    for scheme in preserved_schemes():
        if (name, scheme) == ("bert", "ln_scaling"):
            continue
        model, batch = swapped(name, scheme), inputs(name)
        folder = tmp_path / f"{name}-{scheme}"
        model.save_pretrained(folder)
        torch.save({"ids": batch["input_ids"], "logits": asked(model, batch)}, folder / "kept.pt")
        folders.append(str(folder))
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith(f"same {len(folders)}")


@pytest.mark.slow
def test_a_pickle_loads_in_a_fresh_process(tmp_path):
    model, batch = swapped("llama", "attn_res"), inputs("llama")
    torch.save({"model": model, "ids": batch["input_ids"], "logits": asked(model, batch)}, tmp_path / "whole.pt")
    script = (
        "import sys, torch; k = torch.load(sys.argv[1], weights_only=False)\n"
        "with torch.no_grad(): assert torch.equal(k['model'](k['ids']).logits, k['logits'])\nprint('same')"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "whole.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("same"), done.stderr[-2000:]


def test_without_normlab_the_error_names_it(tmp_path):
    swapped("llama", "attn_res").save_pretrained(tmp_path)
    script = "import sys; from transformers import AutoModelForCausalLM as A; A.from_pretrained(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "normlab_llama" in done.stderr


def test_the_card_says_how_to_load_it(tmp_path):
    swapped("llama", "block_attn_res", blocks=3).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "# LlamaForCausalLM with block_attn_res(blocks=3)" in card
    assert "import normlab.hf" in card
    assert "AutoModelForCausalLM.from_pretrained" in card
    (tmp_path / "README.md").write_text("somebody's own")
    swapped("llama", "attn_res").save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "somebody's own"


def test_a_folder_of_another_version(tmp_path):
    """Options that are new since then take their defaults; a scheme or an option that is not known here is said."""
    swapped("llama", "block_attn_res", moved=0.0).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    old = copy.deepcopy(stored)
    old["normlab"] = {"version": "0.0.1", "scheme": {"name": "block_attn_res"}}
    path.write_text(json.dumps(old))
    assert is_swapped(transformers.AutoModelForCausalLM.from_pretrained(tmp_path))
    for change, says in (({"name": "later_norm"}, "later_norm"), ({"name": "attn_res", "from_later": 1}, "from_later")):
        path.write_text(json.dumps({**stored, "normlab": {"version": "9.0", "scheme": change}}))
        with pytest.raises(InputError, match=f"swapped by normlab 9.0, and this is normlab .*{says}"):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    path.write_text(json.dumps({key: value for key, value in stored.items() if key != "normlab"}))
    with pytest.raises(InputError, match="names no scheme under 'normlab'"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_new_model_from_a_config_alone():
    """AutoModel.from_config: random weights, and a scheme at its start."""
    config = swapped("llama", "mhc").config
    again = transformers.AutoModelForCausalLM.from_config(config)
    assert torch.equal(again.scheme.bias[0, :4], again.scheme.bias[1, :4])
    assert torch.isfinite(asked(again, inputs("llama"))).all()


def test_parameters_that_a_checkpoint_lacks_start_neutral(tmp_path):
    """A plain checkpoint with a swapped config: the scheme begins at its start, whatever memory held."""
    plain = build("llama")
    plain.save_pretrained(tmp_path)
    config = swapped("llama", "mhc").config
    again, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, config=config, output_loading_info=True)
    assert all("scheme" in key for key in info["missing_keys"])
    assert torch.equal(asked(again, inputs("llama")), asked(plain, inputs("llama")))


def test_a_headless_model_and_one_that_loads_the_body_alone(tmp_path):
    model = transformers.AutoModel.from_config(build("llama").config).eval()
    nl.swap(model, "attn_res", batches=[inputs("llama")])
    assert type(model).__name__ == "NormlabLlamaModel"
    assert len(model(**inputs("llama"), output_hidden_states=True).hidden_states) == 4
    whole = swapped("llama", "attn_res")
    whole.save_pretrained(tmp_path)
    body = transformers.AutoModel.from_pretrained(tmp_path)
    assert torch.equal(asked(body, inputs("llama")), asked(whole.model, inputs("llama")))


def test_diagnose_reads_a_swapped_model():
    model = swapped("llama", "block_attn_res")
    found = nl.diagnose(model, [inputs("llama", tokens=24)["input_ids"]])
    assert len(found.layers) == 3


@pytest.mark.parametrize(
    ("base", "auto"),
    [("LlamaForCausalLM", "AutoModelForCausalLM"), ("GPT2LMHeadModel", "AutoModelForCausalLM"),
     ("BertForMaskedLM", "AutoModelForMaskedLM"), ("LlamaModel", "AutoModel"),
     ("BertForSequenceClassification", "AutoModelForSequenceClassification")],
)  # fmt: skip
def test_auto_class(base, auto):
    assert auto_class(base) == auto
