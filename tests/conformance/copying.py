"""From another library's weights to ours, name by name.

Each `from_*` function takes a `Ledger` of their tensors and returns ours under our names. Both ends are checked: every
tensor of theirs must be used (`Ledger.done`) and every one of ours filled (`load_state_dict(strict=True)`). Apart from
Gemma's `1 + w` (the argument `one`) the functions are linear, so the same function translates gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


class Ledger:
    """Their tensors; `take` removes one, so that a forgotten or doubly used weight shows."""

    def __init__(self, tensors: Mapping[str, Tensor], *, one: float = 1.0) -> None:
        self.left = dict(tensors)
        self.one = one  # what Gemma adds to a norm's weight: 1 for weights, 0 for gradients

    def take(self, name: str) -> Tensor:
        return self.left.pop(name)

    def stack(self, template: str, parts: str) -> Tensor:
        """One matrix (or bias) of several: rows of q, k, v or of gate, up below each other."""
        return torch.cat([self.take(template.format(part)) for part in parts.split()])

    def done(self) -> None:
        assert not self.left, f"weights that nobody copied: {sorted(self.left)}"


Translation = Callable[[Ledger, int], dict[str, Tensor]]


def copy_weights(translate: Translation, theirs: nn.Module, ours: nn.Module, *, depth: int) -> None:
    ours.load_state_dict(_translated(translate, dict(theirs.named_parameters()), depth), strict=True)


def translated_gradients(translate: Translation, theirs: nn.Module, *, depth: int) -> dict[str, Tensor]:
    gradients = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    return _translated(translate, gradients, depth, one=0.0)


def _translated(
    translate: Translation, tensors: Mapping[str, Tensor], depth: int, *, one: float = 1.0
) -> dict[str, Tensor]:
    ledger = Ledger({name: tensor.detach() for name, tensor in tensors.items()}, one=one)
    ours = translate(ledger, depth)
    ledger.done()
    return ours


def _weight_and_bias(ledger: Ledger, theirs: str, ours: str) -> dict[str, Tensor]:
    return {f"{ours}.{kind}": ledger.take(f"{theirs}.{kind}") for kind in ("weight", "bias")}


# -- torch.nn -------------------------------------------------------------------------------------------------------
def from_torch_encoder(ledger: Ledger, depth: int, *, pre: bool) -> dict[str, Tensor]:
    """`Encoder` of twins.py: an embedding in front of nn.TransformerEncoder."""
    ours = {"embedding.weight": ledger.take("embedding.weight")}
    for layer in range(depth):
        prefix, attention, ffn = f"encoder.layers.{layer}", f"branches.{2 * layer}", f"branches.{2 * layer + 1}"
        for kind in ("weight", "bias"):
            ours[f"{attention}.qkv.{kind}"] = ledger.take(f"{prefix}.self_attn.in_proj_{kind}")
        ours |= _weight_and_bias(ledger, f"{prefix}.self_attn.out_proj", f"{attention}.out")
        ours |= _weight_and_bias(ledger, f"{prefix}.linear1", f"{ffn}.up")
        ours |= _weight_and_bias(ledger, f"{prefix}.linear2", f"{ffn}.down")
        for which in (0, 1):
            place = "pre" if pre else "out"
            ours |= _weight_and_bias(ledger, f"{prefix}.norm{which + 1}", f"scheme.{place}.{2 * layer + which}")
    if pre:
        ours |= _weight_and_bias(ledger, "encoder.norm", "scheme.final")
    return ours


# -- Hugging Face ---------------------------------------------------------------------------------------------------
def from_bert(ledger: Ledger, depth: int) -> dict[str, Tensor]:
    """Every token is of type 0, so that row of the type embedding belongs to every position."""
    kinds = ledger.take("embeddings.token_type_embeddings.weight")
    ours = {
        "embedding.weight": ledger.take("embeddings.word_embeddings.weight"),
        "position.weight": ledger.take("embeddings.position_embeddings.weight") + kinds[0],
        **_weight_and_bias(ledger, "embeddings.LayerNorm", "scheme.embedding"),
    }
    for layer in range(depth):
        prefix, attention, ffn = f"encoder.layer.{layer}", f"branches.{2 * layer}", f"branches.{2 * layer + 1}"
        for kind in ("weight", "bias"):
            ours[f"{attention}.qkv.{kind}"] = ledger.stack(f"{prefix}.attention.self.{{}}.{kind}", "query key value")
        ours |= _weight_and_bias(ledger, f"{prefix}.attention.output.dense", f"{attention}.out")
        ours |= _weight_and_bias(ledger, f"{prefix}.attention.output.LayerNorm", f"scheme.out.{2 * layer}")
        ours |= _weight_and_bias(ledger, f"{prefix}.intermediate.dense", f"{ffn}.up")
        ours |= _weight_and_bias(ledger, f"{prefix}.output.dense", f"{ffn}.down")
        ours |= _weight_and_bias(ledger, f"{prefix}.output.LayerNorm", f"scheme.out.{2 * layer + 1}")
    return ours


def from_gpt2(ledger: Ledger, depth: int) -> dict[str, Tensor]:
    """GPT-2's Conv1D keeps its matrices as [in, out]."""

    def linear(theirs: str, name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": ledger.take(f"{theirs}.weight").T, f"{name}.bias": ledger.take(f"{theirs}.bias")}

    ours = {
        "embedding.weight": ledger.take("transformer.wte.weight"),
        "position.weight": ledger.take("transformer.wpe.weight"),
        **_weight_and_bias(ledger, "transformer.ln_f", "scheme.final"),
    }
    for layer in range(depth):
        prefix, attention, ffn = f"transformer.h.{layer}", f"branches.{2 * layer}", f"branches.{2 * layer + 1}"
        ours |= _weight_and_bias(ledger, f"{prefix}.ln_1", f"scheme.pre.{2 * layer}")
        ours |= linear(f"{prefix}.attn.c_attn", f"{attention}.qkv") | linear(
            f"{prefix}.attn.c_proj", f"{attention}.out"
        )
        ours |= _weight_and_bias(ledger, f"{prefix}.ln_2", f"scheme.pre.{2 * layer + 1}")
        ours |= linear(f"{prefix}.mlp.c_fc", f"{ffn}.up")
        ours |= linear(f"{prefix}.mlp.c_proj", f"{ffn}.down")
    return ours


def from_llama(ledger: Ledger, depth: int) -> dict[str, Tensor]:
    norms = {"input_layernorm": "pre.{0}", "post_attention_layernorm": "pre.{1}"}
    return _llama_like(ledger, depth, norms) | {"head.weight": ledger.take("lm_head.weight")}


def from_olmo2(ledger: Ledger, depth: int) -> dict[str, Tensor]:
    norms = {"post_attention_layernorm": "res.{0}", "post_feedforward_layernorm": "res.{1}"}
    ours = _llama_like(ledger, depth, norms) | {"head.weight": ledger.take("lm_head.weight")}
    for layer in range(depth):
        for theirs, name in (("q_norm", "query_norm"), ("k_norm", "key_norm")):
            gain = ledger.take(f"model.layers.{layer}.self_attn.{theirs}.weight")
            ours[f"branches.{2 * layer}.{name}.weight"] = gain
    return ours


def from_gemma2(ledger: Ledger, depth: int) -> dict[str, Tensor]:
    """Gemma's norms multiply by 1 + w."""
    norms = {
        "input_layernorm": "pre.{0}",
        "post_attention_layernorm": "res.{0}",
        "pre_feedforward_layernorm": "pre.{1}",
        "post_feedforward_layernorm": "res.{1}",
    }
    ours = _llama_like(ledger, depth, norms)
    return {name: ledger.one + tensor if name.startswith("scheme.") else tensor for name, tensor in ours.items()}


def _llama_like(ledger: Ledger, depth: int, norms: Mapping[str, str]) -> dict[str, Tensor]:
    """What Llama, OLMo 2 and Gemma 2 share. `norms`: their name -> ours, {0} the attention branch and {1} the FFN."""
    ours = {
        "embedding.weight": ledger.take("model.embed_tokens.weight"),
        "scheme.final.weight": ledger.take("model.norm.weight"),
    }
    for layer in range(depth):
        prefix, attention, ffn = f"model.layers.{layer}", f"branches.{2 * layer}", f"branches.{2 * layer + 1}"
        ours[f"{attention}.qkv.weight"] = ledger.stack(f"{prefix}.self_attn.{{}}_proj.weight", "q k v")
        ours[f"{attention}.out.weight"] = ledger.take(f"{prefix}.self_attn.o_proj.weight")
        ours[f"{ffn}.up.weight"] = ledger.stack(f"{prefix}.mlp.{{}}_proj.weight", "gate up")
        ours[f"{ffn}.down.weight"] = ledger.take(f"{prefix}.mlp.down_proj.weight")
        for theirs, place in norms.items():
            ours[f"scheme.{place.format(2 * layer, 2 * layer + 1)}.weight"] = ledger.take(f"{prefix}.{theirs}.weight")
    return ours
