"""The architecture of a model as plain values: read from its config.json, and made small.

Everything that a config says by layer is cut with the layers, widths shrink in proportion, and the vocabulary is the
task's. What stays is the architecture: kinds of layers and their order, norms, activations, initialisation.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from normlab.errors import ConfigError, InputError, nearest, require
from normlab.files import LIMITS, read_text

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Values = dict[str, JsonValue]
"""What a config.json holds."""
SHIPPED = ("kimi_linear",)
TYPE = "normlab_"  # of swapped models: their base is meant
LARGE_DIM, LARGE_DEPTH = 128, 12  # what is larger than this is made as small as a comparison's models are
DIM, HEADS = 64, 4
EXPERTS = 8
_LEFT_OUT = (
    "transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype", "id2label", "label2id", "auto_map",
    "problem_type", "normlab", "use_cache", "return_dict", "output_hidden_states", "output_attentions",
)  # fmt: skip
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id", "cls_token_id")
_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "lora_rank", "ffn_hidden_size", "word_embed_proj_dim")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k")


def read_architecture(source: str) -> Values:
    """The values of a model folder, of a config.json, or of one that ships."""
    path = _file(source)
    text = read_text(path, what="the config of the backbone", most=LIMITS.config_bytes)
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(f"the config of the backbone, {str(path)!r}, is no JSON ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError(f"{str(path)!r} names no model_type, so it is no config of a Hugging Face model")
    if values.get("quantization_config"):
        raise InputError(f"{str(path)!r} is of a quantised model; give the config of the one in full precision")
    return {**values, "model_type": values["model_type"].removeprefix(TYPE)}


def _file(source: str) -> Path:
    path = Path(source).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return path
    if source in SHIPPED:
        return Path(__file__).parent / f"{source}.json"
    close = nearest(source, SHIPPED)
    meant = f" (did you mean {close!r}?)" if close else ""
    raise InputError(
        f"no backbone is at {source!r}{meant}; give a model folder, its config.json, or one that ships: {', '.join(SHIPPED)}"
    )


def config_of(values: Values) -> PretrainedConfig:
    """The config object of these values."""
    transformers = require("transformers", extra="hf", purpose="a model of somebody's architecture")
    kind = str(values["model_type"])
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in known:
        close = nearest(kind, list(known._mapping))
        raise ConfigError(
            f"architecture.model_type: transformers {transformers.__version__} does not know {kind!r}"
            f"{f'; did you mean {close!r}?' if close else ''}"
        )
    rest = {key: value for key, value in values.items() if key not in ("model_type", *_LEFT_OUT)}
    try:
        found: PretrainedConfig = known[kind](**rest)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ConfigError(f"architecture: {kind} refuses its config ({error})") from None
    return found


def sizes(source: str) -> tuple[int, int, int]:
    """Width, layers and heads of a comparison on this backbone: its own, or small ones where those are large."""
    text = config_of(read_architecture(source)).get_text_config()
    dim, depth, heads = int(text.hidden_size), int(text.num_hidden_layers), int(text.num_attention_heads)
    if dim > LARGE_DIM or depth > LARGE_DEPTH:
        return DIM, min(depth, LARGE_DEPTH), HEADS
    return dim, depth, heads


@cache
def small(source: str, *, vocab_size: int, dim: int, depth: int, heads: int) -> str:
    """The architecture at these sizes, as JSON text."""
    from normlab.surgery.cut import cut_config

    config = config_of(read_architecture(source))
    text = config.get_text_config()
    own = int(text.num_hidden_layers)
    if depth > own:
        raise ConfigError(f"depths: the backbone {source!r} has {own} layers, so {depth} are not to be had; give fewer")
    if depth < own:
        cut_config(text, range(depth), own)
    if (dim, heads) != (text.hidden_size, text.num_attention_heads):
        _narrow(text, dim, heads)
    for name in _TOKENS:
        if getattr(config, name, None) is not None:
            setattr(config, name, None)  # the task has no such tokens, and a padding token would never be learned
    text.vocab_size = vocab_size
    values = json.loads(config.to_json_string(use_diff=False))
    return json.dumps({key: value for key, value in values.items() if key not in _LEFT_OUT}, sort_keys=True)


def _narrow(config: PretrainedConfig, dim: int, heads: int) -> None:
    """Widths in proportion, and as many heads; every number that follows from another is set with it."""
    if dim % heads:
        raise ConfigError(f"heads: {heads} heads do not divide the width {dim}")
    own_dim, own_heads = int(config.hidden_size), int(config.num_attention_heads)
    wide, deep = dim / own_dim, (dim / heads) / (own_dim / own_heads)
    for name, value in list(vars(config).items()):
        if type(value) is not int:
            continue
        if name.endswith("head_dim"):
            setattr(config, name, max(2, 2 * round(value * deep / 2)))
        elif name.endswith(_WIDTHS):
            setattr(config, name, max(8, 8 * round(value * wide / 8)))
        elif name.endswith(("_heads", "n_head")):
            setattr(config, name, _divisor(heads, value * heads / own_heads))
        elif name in _EXPERTS:
            setattr(config, name, min(value, EXPERTS))
        elif name in _CHOSEN:
            setattr(config, name, min(value, 2))
    config.hidden_size, config.num_attention_heads = dim, heads
    if hasattr(config, "qk_head_dim"):
        config.qk_head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim


def _divisor(heads: int, wanted: float) -> int:
    """The number of heads nearest to the wanted one that the query heads share evenly."""
    return min((n for n in range(1, heads + 1) if heads % n == 0), key=lambda n: abs(n - wanted))
