"""Models from outside: Hugging Face ids and folders, GGUF files, installed weight packages.

The one module of `probes` that imports transformers. Nothing that can run code is loaded unless asked: no pickle, no
remote code.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import InputError, NormlabError, UnsupportedError, need, require
from normlab.probes.inputs.gguf import assembled, check_header, first_token
from normlab.probes.inputs.packages import (
    PICKLES,
    check_config,
    check_places,
    check_sizes,
    check_weights,
    package_weights,
    unnamed_config,
    vocabulary_tokenizer,
)
from normlab.probes.inputs.places import is_not_here, must_load_from_cache, there_is_none


@dataclass(frozen=True)
class OwnText:
    """Token ids of the kind that a model was trained on, and kept from it."""

    ids: Tensor
    named: str


def check_packages(source: str) -> None:
    """Say which Python package is missing before anything is loaded: of several models the last one may need it."""
    path = Path(source)
    if source.startswith("package:"):
        need("transformers", extra="gguf", purpose=f"loading {source!r}")  # most of them carry a .gguf file
    elif path.suffix == ".gguf" and path.is_file():
        need("transformers", extra="gguf", purpose=f"loading {source!r}")
        if not _is_whole(_cached(path)):
            need("gguf", extra="gguf", purpose=f"loading {source!r}")
    elif path.exists():
        need("transformers", extra="hf", purpose=f"loading {source!r}")
    elif _is_path(source) or path.suffix == ".gguf":
        raise there_is_none(source)
    else:
        need("huggingface_hub", extra="hf", purpose=f"{is_not_here(source)}. Asking the Hugging Face hub for it")


def _is_path(source: str) -> bool:
    """A name that cannot be one of the hub."""
    return source.startswith((".", "/", "~")) or source.count("/") > 1


@dataclass
class Loaded:
    """A model that is ready to run, and how to turn text into its tokens."""

    name: str
    model: nn.Module
    tokenizer: Any = None
    notes: list[str] = field(default_factory=list)
    bos: int | None = None  # the token that a text begins with, where the file says it and the tokenizer does not
    window: int | None = None  # tokens in training, where that is known: longer ones would be a test of its own
    own_text: Callable[[], OwnText | None] = lambda: None  # another text would be a test of its own, too


def load(source: str, *, allow_pickle: bool = False, remote_code: bool = False) -> Loaded:
    """A Hugging Face id, a local folder, a .gguf file, or `package:NAME[/MODEL]` for weights that a package carries."""
    if source.startswith("package:"):
        name = source.removeprefix("package:")
        found = assembled(name, cache_folder()) or package_weights(name)
        loaded = load(str(found), allow_pickle=allow_pickle, remote_code=remote_code)
        loaded.name = name
        return loaded
    path = Path(source)
    if path.suffix == ".gguf":
        return _load_gguf(path)
    if path.suffix in PICKLES and (path.exists() or not allow_pickle):
        raise UnsupportedError(
            f"{source!r} is a pickle checkpoint: loading it can run code, and it does not say which model it is; save "
            "the model with save_pretrained (safetensors) and pass the folder, or build it and call nl.diagnose(model)"
        )
    if path.exists():
        _check_folder(path, allow_pickle=allow_pickle)
    elif _is_path(source):
        raise there_is_none(source)
    local = path.exists() or must_load_from_cache(source)
    return _load_hf(source, name=path.name or source, allow_pickle=allow_pickle, remote_code=remote_code, local=local)


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
    if not any(name.endswith(".safetensors") for name in names) and any(name.endswith(PICKLES) for name in names):
        if not allow_pickle:
            raise UnsupportedError(
                f"{str(path)!r} has only pickle weights, and loading a pickle can run code; convert them to "
                "safetensors, or pass --allow-pickle if you trust the file"
            )
    elif not any(name.endswith(".safetensors") for name in names):
        raise InputError(f"{str(path)!r} has a config.json but no weights (*.safetensors)")
    check_places(path)
    check_config(path)


def _load_hf(source: str, *, name: str, allow_pickle: bool, remote_code: bool, local: bool = True) -> Loaded:
    transformers = require("transformers", extra="hf", purpose=f"loading {source!r}")
    here = {"trust_remote_code": remote_code, "local_files_only": local}
    try:
        with quiet():
            guessed = unnamed_config(transformers, Path(source), allow_pickle=allow_pickle)
            config = guessed[0] if guessed else None
            config = config or transformers.AutoConfig.from_pretrained(source, **here)
            if getattr(config, "auto_map", None) and not remote_code:
                raise UnsupportedError(_remote(source))
            automatic = getattr(transformers, _auto_class(config, source))
            model, info = automatic.from_pretrained(
                source, config=config, dtype=torch.float32, **here,
                use_safetensors=None if allow_pickle else True, output_loading_info=True,
                ignore_mismatched_sizes=True,  # so that check_weights can name them
            )  # fmt: skip
        check_weights(model, info, source=source)
    except NormlabError:
        raise
    except pickle.UnpicklingError:
        raise InputError(f"the pickle in {source!r} holds more than tensors; its code was not run") from None
    except Exception as error:  # loaders of other libraries: whatever they raise, the user gets one sentence
        if "trust_remote_code" in str(error):
            raise UnsupportedError(_remote(source)) from None
        raise InputError(f"{source!r} could not be loaded as a Hugging Face model: {_first_line(error)}") from None
    notes = [guessed[1]] if guessed else []
    if getattr(config, "is_encoder_decoder", False):
        notes.append("the encoder alone was read; the decoder half is not traced")
    tokenizer = _tokenizer(transformers, source, config if guessed else None, here)
    return Loaded(name, model.eval(), tokenizer, notes)


def _remote(source: str) -> str:
    return (
        f"{source!r} wants to run code of its own (auto_map in its config.json), which is refused unless you pass "
        "--trust-remote-code"
    )


def _auto_class(config: Any, source: str) -> str:
    """The head that the checkpoint was saved with: it decides which loss is real. Of T5, the encoder is read."""
    if getattr(config, "is_encoder_decoder", False):
        encoders = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
        if config.model_type not in encoders:
            raise UnsupportedError(
                f"{source!r} is an encoder-decoder ({config.model_type}), which needs two texts; load it yourself and "
                "call nl.diagnose(model, batches)"
            )
        return encoders[config.model_type]
    saved = (getattr(config, "architectures", None) or [""])[0]
    if saved.endswith(("ForCausalLM", "LMHeadModel")):
        return "AutoModelForCausalLM"
    return "AutoModelForMaskedLM" if saved.endswith("ForMaskedLM") else "AutoModel"


def _tokenizer(transformers: Any, source: str, config: Any, here: dict[str, bool]) -> Any:
    """Left to itself, transformers asks on the terminal whether to run a tokenizer's own code; here the answer is given."""
    known = {} if config is None else {"config": config}
    found = None
    # Many reasons to fail, one consequence: text cannot be read, token ids can.
    with quiet(), contextlib.suppress(Exception):
        found = transformers.AutoTokenizer.from_pretrained(source, **here, **known)
    return vocabulary_tokenizer(transformers, Path(source), found)


def _load_gguf(path: Path) -> Loaded:
    """Dequantise once with transformers' reader, keep safetensors in the cache, load those from then on."""
    if not path.is_file():
        raise there_is_none(str(path))
    transformers = require("transformers", extra="gguf", purpose="loading a GGUF file")
    folder = _cached(path)
    if not _is_whole(folder):
        require("gguf", extra="gguf", purpose="reading a GGUF file")
        try:
            with quiet(), contextlib.redirect_stderr(io.StringIO()):  # a bare tqdm in there
                check_header(path)
                # The folder around the file is not the model's: no code of it runs.
                here: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
                config = transformers.AutoConfig.from_pretrained(path.parent, **here)
                check_sizes(config.to_dict(), source=str(path))
                tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **here)
                model, info = transformers.AutoModelForCausalLM.from_pretrained(
                    path.parent, dtype=torch.float32, output_loading_info=True, **here
                )
                check_weights(model, info, source=str(path))
                temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
                _plain(model).save_pretrained(temporary)
                tokenizer.save_pretrained(temporary)
                _into_place(temporary, folder)
        except NormlabError:
            raise
        except Exception as error:  # a reader of another library, given anything
            raise InputError(f"{path.name!r} could not be read as a GGUF model: {_first_line(error)}") from None
    loaded = _load_hf(str(folder), name=path.stem, allow_pickle=False, remote_code=False)
    loaded.bos = first_token(path, folder)
    loaded.notes.append(f"{path.name}: quantised weights, dequantised to float32 before measuring")
    return loaded


def _cached(path: Path) -> Path:
    """Where the safetensors of a GGUF file are kept."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha(path)
    return cache_folder() / f"gguf-{digest[:16]}"


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _into_place(temporary: Path, folder: Path) -> None:
    """Another process may have read the same file meanwhile: then its folder serves."""
    try:
        temporary.replace(folder)
    except OSError:
        if not _is_whole(folder):
            raise
        shutil.rmtree(temporary)


def _plain(model: Any) -> Any:
    """The same weights in a model that does not call itself quantised, so that it can be saved."""
    for owner in (model.config, getattr(model, "generation_config", None)):
        if owner is not None and hasattr(owner, "quantization_config"):
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
def quiet() -> Iterator[None]:
    """Progress bars and advice of transformers are not our output."""
    transformers = require("transformers", extra="hf", purpose="loading a model")
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


@contextmanager
def saving(folder: str | Path) -> Iterator[None]:
    """`save_pretrained` inside is quiet, and a full disk is an OSError with a name: safetensors has an error of its own."""
    from safetensors import SafetensorError

    try:
        with quiet():
            yield
    except SafetensorError as error:
        raise OSError(f"the weights cannot be written to {str(folder)!r}: {error}") from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
