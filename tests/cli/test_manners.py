"""What every command owes its user: the folder checked first, advice that it can take, options that count."""

import subprocess
import sys

import pytest

from normlab.cli import app, fitting, run

WRITERS = {
    "compare": ["compare"], "stability": ["stability"], "lengthgen": ["lengthgen"], "dynamics": ["dynamics"],
    "atlas": ["atlas"], "claims": ["claims"], "claims run": ["claims", "run", "002-02"],
    "diagnose": ["diagnose", "nowhere/model"], "swap": ["swap", "nowhere/model", "pre_norm"],
    "prune": ["prune", "nowhere/model"], "theory bridge": ["theory", "bridge"], "theory signal": ["theory", "signal"],
    "theory seesaw": ["theory", "seesaw"], "theory contributions": ["theory", "contributions"],
    "theory mean-field": ["theory", "mean-field"],
}  # fmt: skip


@pytest.mark.parametrize("command", WRITERS.values(), ids=WRITERS)
def test_out_is_checked_before_the_work(command, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run([*command, "--out", str(tmp_path / "file" / "below")]) == 2
    assert "nothing can be written to --out" in capsys.readouterr().err


def test_the_check_leaves_nothing_behind(tmp_path, capsys):
    out = tmp_path / "a" / "b"
    assert run(["dynamics", "--schemes", "nonsense", "--out", str(out)]) == 2
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("command", ["dynamics --init text", "diagnose m", "swap m keel", "prune m", "theory bridge m"])
def test_an_empty_text_is_refused(command, tmp_path, capsys):
    """`diagnose`, `swap` and `prune` get a model that exists first; here the text alone is asked."""
    from normlab.errors import InputError
    from normlab.probes.inputs.texts import read_text

    (tmp_path / "empty.txt").write_text(" \n")
    words = command.split()
    if "m" in words:
        with pytest.raises(InputError, match="is empty"):
            read_text(tmp_path / "empty.txt")
        return
    assert run([*words, "--text", str(tmp_path / "empty.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("cost --schemes pre_norm --blocks 4", "--blocks 4 applies to none of pre_norm"),
        ("cost --schemes block_attn_res(blocks=2) --blocks 4", "--blocks 4 applies to none"),
        ("cost --cuts 3", "--cuts is for a pipeline"),
        ("prune m --lr 1e-3", "--lr is the rate of healing"),
        ("prune m --layers 1 --most 2", "--most chooses layers"),
        ("dynamics --text README.md", "--text is read with --init text only"),
        ("dynamics --heads 4", "--heads splits random weights"),
        ("dynamics --seeds 3", "--seeds repeats random draws"),
        ("diagnose m --text a --tokens b", "give one of the two"),
        ("train README.md --strategy fsdp", "--strategy is for several processes"),
        ("theory bridge --text README.md", "--text is what a MODEL is run on"),
        ("claims run null-x --budget 2h", "--budget and --strict are for claims"),
    ],
)
def test_what_does_not_apply_is_refused(command, sentence, capsys):
    assert run(command.split()) == 2
    assert sentence in capsys.readouterr().err


def test_advice_names_only_options_that_the_command_has():
    said = "m comes without a tokenizer; pass token ids with --tokens FILE"
    assert fitting(said, ["diagnose", "m"]) == said
    assert fitting(said, ["swap", "m", "keel"]) == "m comes without a tokenizer"
    both = "it does not fit; pass a text of its kind with --text, or token ids with --tokens"
    assert fitting(both, ["swap", "m", "keel"]) == "it does not fit; pass a text of its kind with --text"
    foreign = "broken; run: pip install --no-deps x"
    assert fitting(foreign, ["swap"]) == foreign, "an option of another program is none of ours"


def test_a_pickle_in_swap_is_not_sent_to_an_option_of_diagnose(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert run(["swap", str(tmp_path), "keel", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "only pickle weights" in said
    assert "--allow-pickle" not in said


@pytest.mark.parametrize("command", [["report", "runs/copare"], ["train", "exampels/train.yaml"]])
def test_a_misspelt_path_answers_before_torch_is_loaded(command, tmp_path):
    (tmp_path / "runs" / "compare").mkdir(parents=True)
    code = f"import sys; from normlab.cli import run; code = run({command!r}); print(code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["2", "False"]
    assert "there is no file or folder" in done.stderr
    assert ("did you mean 'runs/compare'" in done.stderr) == (command[0] == "report")


def test_every_command_says_its_page_alike():
    """A page is announced by `page: PATH`, what is no page by `folder: PATH`; nothing else is used."""
    from pathlib import Path

    import normlab

    source = Path(normlab.__file__).parent
    others = ("Report: {", "written: {", "open {", "written to {")
    for path in source.rglob("*.py"):
        if path.name == "demo.py":  # it ends with a story, in which pages are named
            continue
        text = path.read_text(encoding="utf-8")
        assert not any(f'"{word}' in text or f"\\n{word}" in text for word in others), path
    assert app is not None


def test_the_list_of_commands_cuts_no_sentence(capsys):
    """The first lines that a new user reads."""
    for words in ([], ["theory"], ["claims"], ["schemes"]):
        assert run([*words, "--help"]) == 0
        listed = capsys.readouterr().out.partition("Commands:")[2]
        assert "..." not in listed, listed
