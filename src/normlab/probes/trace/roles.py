"""Which module is what, per architecture: one readable row each.

A layer is a list of branches on the stream x. With F the branch and N a norm,

    x <- out( skip carry(x) + scale res( F( pre(x) ) ) )

and a name that is absent is the identity, a factor that is absent 1. `added` names the module whose output, times
`scale`, is what is actually added to the stream: on sandwich-norm models that is a norm, on BERT a dropout inside
`attention.output`, on BLOOM a linear layer deep in the attention, whose own output already contains the residual. A
parallel branch reads the layer's input.

Rows are claims, not knowledge: `identity.verify` checks the equation on data for every layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import ConfigError


@dataclass(frozen=True)
class Factor:
    """What the skip or a branch is multiplied by: a number, or a gate that parameters make, read anew each time."""

    name: str
    find: Callable[[], Tensor | float] = field(compare=False)

    def __str__(self) -> str:
        return self.name


Scale = Factor | float | str  # a string names a number or a parameter inside the layer, or the tanh(...) of one
_GATES: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp}


def scale_value(layer: nn.Module, scale: Scale) -> Tensor | float:
    """The number, or the vector [d], that a factor is now."""
    if isinstance(scale, Factor):
        return scale.find()
    if not isinstance(scale, str):
        return scale
    gate, inside, path = "", "", scale
    if scale.endswith(")"):
        gate, _, inside = scale[:-1].partition("(")
        path = inside
    found: Any = layer
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, (int, float, Tensor)) or (gate and gate not in _GATES):
        raise ConfigError(
            f"the roles of {type(layer).__name__} scale a branch by {scale!r}, which is no number or parameter of it, nor "
            f"one of {', '.join(_GATES)} of one"
        )
    return _GATES[gate](torch.as_tensor(found)) if gate else found


@dataclass(frozen=True)
class BranchRoles:
    """One branch of a layer; names are paths inside the layer, `norm@2` the second call of a module in one pass."""

    kind: str  # "attention", "cross_attention", "mixer" (of tokens, without softmax attention) or "ffn"
    added: str
    core: str = ""  # the module that returns attention weights, or the feed-forward; `added` if empty
    pre: str = ""
    res: str = ""
    out: str = ""
    carry: str = ""
    parallel: bool = False
    behind: int = (
        0  # where it is parallel: it reads the stream behind so many branches of the layer (LongCat's shortcut)
    )
    skip: Scale = 1.0
    scale: Scale = 1.0
    shift: Factor | None = None  # a learned constant that is added to the stream (ZAYA)
    mixer: str = ""  # what mixes tokens, where it is no softmax attention: "state space (MambaMixer)"

    @property
    def scaled(self) -> str:
        """How the branch and the skip are weighed, in words; empty where both are 1."""
        weighed = {"skip": self.skip, "branch": self.scale, "shift": self.shift or 1.0}
        shown = {name: f"{each:.4g}" if isinstance(each, float) else str(each) for name, each in weighed.items()}
        return ", ".join(f"{name} {shown[name]}" for name, factor in weighed.items() if factor != 1.0)

    @property
    def names(self) -> list[str]:
        return [name for name in (self.added, self.core, self.pre, self.res, self.out, self.carry) if name]


Variant = Callable[[Any], bool]


@dataclass(frozen=True)
class LayerRoles:
    """The branches of one layer class; `when` selects between layouts of the same class."""

    layer: str
    branches: tuple[BranchRoles, ...]
    when: Variant | None = None
    inferred: bool = False

    @property
    def placement(self) -> str:
        """The name of the scheme table that fits the norms of this row."""
        kinds = {_placement(branch) for branch in self.branches}
        name = kinds.pop() if len(kinds) == 1 else "mixed"
        if any(branch.scaled for branch in self.branches):
            name += ", scaled"
        return f"{name}, parallel branches" if any(branch.parallel for branch in self.branches) else name


def _placement(branch: BranchRoles) -> str:
    found = (bool(branch.pre), bool(branch.res), bool(branch.out))
    return {
        (False, False, False): "no_norm",
        (True, False, False): "carried_norm" if branch.carry else "pre_norm",
        (True, True, False): "peri_norm",
        (False, True, False): "res_norm",
        (False, False, True): "post_norm",
        (True, False, True): "pre_and_post_norm",
        (False, True, True): "res_and_post_norm",
        (True, True, True): "all_norms",
    }[found]


def _pre(
    attention: str, ffn: str, norms: tuple[str, str], *, parallel: bool = False, cores: tuple[str, str] = ("", "")
) -> tuple[BranchRoles, BranchRoles]:
    return (
        BranchRoles("attention", attention, cores[0], pre=norms[0]),
        BranchRoles("ffn", ffn, cores[1], pre=norms[1], parallel=parallel),
    )


def _post(
    attention: str, ffn: str, norms: tuple[str, str], *, cores: tuple[str, str] = ("", "")
) -> tuple[BranchRoles, BranchRoles]:
    return BranchRoles("attention", attention, cores[0], out=norms[0]), BranchRoles("ffn", ffn, cores[1], out=norms[1])


_BERT = _post(
    "attention.output.dropout",
    "output.dropout",
    ("attention.output.LayerNorm", "output.LayerNorm"),
    cores=("attention.self", "intermediate"),
)
_LLAMA = _pre("self_attn", "mlp", ("input_layernorm", "post_attention_layernorm"))
_GEMMA = (
    BranchRoles(
        "attention", "post_attention_layernorm", "self_attn", pre="input_layernorm", res="post_attention_layernorm"
    ),
    BranchRoles(
        "ffn", "post_feedforward_layernorm", "mlp", pre="pre_feedforward_layernorm", res="post_feedforward_layernorm"
    ),
)
_OLMO2 = tuple(replace(branch, pre="") for branch in _GEMMA)
_NEOX = _pre(
    "post_attention_dropout",
    "post_mlp_dropout",
    ("input_layernorm", "post_attention_layernorm"),
    cores=("attention", "mlp"),
)
_OPT = _pre("self_attn", "fc2", ("self_attn_layer_norm", "final_layer_norm"), cores=("self_attn", "fc1"))
_FALCON = _pre("self_attention", "mlp", ("input_layernorm", "post_attention_layernorm"))
_BLOOM = _pre(
    "self_attention.dense",
    "mlp.dense_4h_to_h",
    ("input_layernorm", "post_attention_layernorm"),
    cores=("self_attention", "mlp"),
)
_TORCH = _pre("dropout1", "dropout2", ("norm1", "norm2"), cores=("self_attn", "linear1"))


def _swap_pre_for_out(branches: tuple[BranchRoles, ...]) -> tuple[BranchRoles, ...]:
    return tuple(replace(branch, pre="", out=branch.pre) for branch in branches)


def _carried(branches: tuple[BranchRoles, ...]) -> tuple[BranchRoles, ...]:
    return tuple(replace(branch, carry=branch.pre) for branch in branches)


def _in_parallel(branches: tuple[BranchRoles, ...], norms: tuple[str, str]) -> tuple[BranchRoles, ...]:
    attention, ffn = branches
    return replace(attention, pre=norms[0]), replace(ffn, pre=norms[1], parallel=True)


TABLE: tuple[LayerRoles, ...] = (
    LayerRoles("BertLayer", _BERT),
    LayerRoles("RobertaLayer", _BERT),
    LayerRoles("XLMRobertaLayer", _BERT),
    LayerRoles("ElectraLayer", _BERT),
    LayerRoles("CamembertLayer", _BERT),
    LayerRoles("RoFormerLayer", _BERT),
    LayerRoles("TransformerBlock", _post("attention", "ffn", ("sa_layer_norm", "output_layer_norm"))),  # DistilBERT
    LayerRoles(
        "AlbertLayer",  # one module, applied many times: layers are counted by calls, not by modules
        _post(
            "attention.output_dropout",
            "ffn_output",
            ("attention.LayerNorm", "full_layer_layer_norm"),
            cores=("attention", "ffn"),
        ),
    ),
    LayerRoles("GPT2Block", _pre("attn", "mlp", ("ln_1", "ln_2"))),
    LayerRoles("GPTNeoXLayer", _NEOX, when=lambda layer: not layer.use_parallel_residual),
    LayerRoles(
        "GPTNeoXLayer",
        _in_parallel(_NEOX, ("input_layernorm", "post_attention_layernorm")),
        when=lambda layer: layer.use_parallel_residual,
    ),
    LayerRoles("OPTDecoderLayer", _OPT, when=lambda layer: layer.do_layer_norm_before),
    LayerRoles(
        "OPTDecoderLayer", _swap_pre_for_out(_OPT), when=lambda layer: not layer.do_layer_norm_before
    ),  # OPT-350M
    LayerRoles("LlamaDecoderLayer", _LLAMA),
    LayerRoles("MistralDecoderLayer", _LLAMA),
    LayerRoles("Qwen2DecoderLayer", _LLAMA),
    LayerRoles("Qwen3DecoderLayer", _LLAMA),
    LayerRoles("OlmoDecoderLayer", _LLAMA),
    LayerRoles("MixtralDecoderLayer", _LLAMA),
    LayerRoles("Qwen2MoeDecoderLayer", _LLAMA),
    LayerRoles("Qwen3MoeDecoderLayer", _LLAMA),
    LayerRoles("KimiLinearDecoderLayer", _LLAMA),  # KDA or MLA, and a mixture of experts
    LayerRoles("Gemma2DecoderLayer", _GEMMA),
    LayerRoles("Gemma3DecoderLayer", _GEMMA),
    LayerRoles("Olmo2DecoderLayer", _OLMO2),
    LayerRoles("PhiDecoderLayer", _in_parallel(_LLAMA, ("input_layernorm", "input_layernorm"))),
    LayerRoles("FalconDecoderLayer", _FALCON, when=lambda layer: not layer.config.parallel_attn),
    LayerRoles(
        "FalconDecoderLayer", _in_parallel(_FALCON, ("ln_attn", "ln_mlp")), when=lambda layer: hasattr(layer, "ln_mlp")
    ),
    LayerRoles("FalconDecoderLayer", _in_parallel(_FALCON, ("input_layernorm", "input_layernorm"))),
    LayerRoles("BloomBlock", _BLOOM, when=lambda layer: not layer.apply_residual_connection_post_layernorm),
    LayerRoles("BloomBlock", _carried(_BLOOM), when=lambda layer: layer.apply_residual_connection_post_layernorm),
    LayerRoles(
        "T5Block",
        _pre(
            "layer.0.dropout",
            "layer.1.dropout",
            ("layer.0.layer_norm", "layer.1.layer_norm"),
            cores=("layer.0.SelfAttention", "layer.1.DenseReluDense"),
        ),
        when=lambda layer: not layer.is_decoder,
    ),
    LayerRoles("ViTLayer", _pre("attention", "mlp", ("layernorm_before", "layernorm_after"))),
    LayerRoles("TransformerEncoderLayer", _TORCH, when=lambda layer: layer.norm_first),
    LayerRoles("TransformerEncoderLayer", _swap_pre_for_out(_TORCH), when=lambda layer: not layer.norm_first),
)


def roles_for(layer: nn.Module) -> LayerRoles | None:
    """The first row whose class name, condition and module names all fit this layer."""
    for row in TABLE:
        if row.layer == type(layer).__name__ and _fits(row, layer):
            return row
    return None


def is_known(row: LayerRoles) -> bool:
    """Is it a row of the table, and not one that was inferred or given?"""
    return any(row is known for known in TABLE)


def _fits(row: LayerRoles, layer: nn.Module) -> bool:
    present = {name for name, _ in layer.named_modules()}
    if not all(name in present for branch in row.branches for name in branch.names):
        return False  # another library's class of the same name, or another version: structure decides then
    return row.when is None or bool(row.when(layer))


def module_path(name: str) -> str:
    """Where the module of a role is: without the number of its call."""
    return name.partition("@")[0]


def branch_prefixes(roles: LayerRoles) -> dict[str, set[str]]:
    """Which parameter names of a layer belong to which branch: the shortest module prefixes that keep them apart."""
    names: dict[str, list[str]] = {}
    for branch in roles.branches:
        found = dict.fromkeys(module_path(name) for name in (branch.core, branch.added) if name)
        names.setdefault(branch.kind, []).extend(found)
    longest = max(name.count(".") + 1 for group in names.values() for name in group)
    prefixes: dict[str, set[str]] = {}
    for parts in range(1, longest + 1):
        prefixes = {kind: {".".join(n.split(".")[:parts]) + "." for n in group} for kind, group in names.items()}
        if len(set().union(*prefixes.values())) == sum(len(group) for group in prefixes.values()):
            break
    return prefixes
