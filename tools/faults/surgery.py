"""What an operation on a model leaves behind: the folder of `swap`, `prune` and `train FOLDER` is whole, or does not load."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch

from normlab.cli import run
from normlab.errors import InputError
from normlab.probes.inputs.hub import quiet
from normlab.store import LOCK

SMALL = ("--window", "16", "--windows", "2")
COMMANDS = {
    "swap": ("swap", "block_attn_res(blocks=2)", *SMALL),
    "prune": ("prune", "--layers", "1", *SMALL),
    "train FOLDER": ("train", "steps=2", "length=16", "warmup=0", "text={text}"),
}


def operation(name: str) -> Callable[[Path], None]:
    """The command as it is typed, on the model that lies beside its folder."""
    command, *words = COMMANDS[name]

    def carry_out(folder: Path) -> None:
        model = folder.parent / "model"
        if not model.exists():
            small_model(model)
        given = [word.format(text=model / "text.txt") for word in words]
        code = run([command, str(model), *given, "--out", str(folder)])
        if code == 130:
            raise KeyboardInterrupt
        if code:
            raise InputError("refused")  # the sentence is said

    return carry_out


def before(folder: Path) -> None:
    """Another model in the place of the new one."""
    small_model(folder, seed=1)


def files(folder: Path) -> dict[str, object]:
    """The digest of each file of a model that loads; nothing where none does."""
    if not (folder / "config.json").is_file():
        return {}
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != LOCK
    }


def small_model(folder: Path, *, seed: int = 0) -> None:
    """A Llama of three layers with a tokenizer of single bytes, and a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: at for at, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    config = LlamaConfig(
        vocab_size=256, hidden_size=8, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(seed)
    with quiet():
        LlamaForCausalLM(config).save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    if seed == 0:
        (folder / "text.txt").write_text("where the norms go " * 20)
