"""Where the parts of each backbone are, under one set of names, so that a fault is written once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layer:
    """One layer. Matrices are [out, in]; those of experts are views of the fused parameters, one per expert."""

    module: nn.Module
    attention: nn.Module
    ffn: nn.Module  # the feed-forward, or its last linear layer where the two are not one module
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    rise: tuple[Tensor, ...]  # the matrices into the hidden units: gate and up, or the only one
    fall: tuple[Tensor, ...]  # the matrices back to the stream
    attention_norms: tuple[nn.Module, ...]  # on the residual path, in the order of the computation
    ffn_norms: tuple[nn.Module, ...]
    router: Tensor | None = None  # [experts, width]

    @property
    def norms(self) -> tuple[nn.Module, ...]:
        return self.attention_norms + self.ffn_norms

    @property
    def projections(self) -> tuple[nn.Linear, ...]:
        return self.query, self.key, self.value, self.out


@dataclass(frozen=True)
class Anatomy:
    layers: tuple[Layer, ...]
    stack: nn.ModuleList  # what the model loops over
    embedding: nn.Embedding
    head: nn.Linear
    final_norm: nn.Module | None
    final_owner: nn.Module  # whose attribute `final_name` the final norm is
    final_name: str
    frequencies: tuple[Tensor, ...]  # of rotary positions
    positions: Tensor | None  # a table of positions, learned or of sines
    heads: int
    key_heads: int
    head_width: int

    @property
    def tied(self) -> bool:
        return self.embedding.weight is self.head.weight

    def query_rows(self, head: int) -> slice:
        return slice(head * self.head_width, (head + 1) * self.head_width)

    def key_rows(self, head: int) -> slice:
        """The rows of the key (or value) head that query head `head` reads."""
        return self.query_rows(head * self.key_heads // self.heads)


def gain(norm: nn.Module) -> Tensor:
    """The factor of a norm per coordinate; Gemma stores it less one."""
    weight = norm.weight.detach()  # type: ignore[union-attr, operator]
    return weight + 1 if type(norm).__name__.startswith("Gemma") else weight


@torch.no_grad()
def set_gain(norm: nn.Module, value: Tensor) -> None:
    norm.weight.copy_(value - 1 if type(norm).__name__.startswith("Gemma") else value)  # type: ignore[union-attr, operator]


def dissect(model: nn.Module, kind: str) -> Anatomy:
    config = model.config
    heads = config.num_attention_heads
    stack, layer_of = _stack(model, kind)
    final_owner, final_name = _final(model, kind)
    layers = tuple(layer_of(module) for module in stack)
    width = layers[0].query.out_features // heads
    tables = dict(model.named_buffers())
    frequencies = tuple(table for name, table in tables.items() if name.endswith("inv_freq") and "original" not in name)
    return Anatomy(
        layers=layers,
        stack=stack,
        embedding=model.get_input_embeddings(),
        head=model.get_output_embeddings(),
        final_norm=getattr(final_owner, final_name, None),
        final_owner=final_owner,
        final_name=final_name,
        frequencies=frequencies,
        positions=_positions(model, kind),
        heads=heads,
        key_heads=layers[0].key.out_features // width,
        head_width=width,
    )


def _stack(model: nn.Module, kind: str) -> tuple[nn.ModuleList, Callable[[nn.Module], Layer]]:
    if kind == "encoder":
        return model.roformer.encoder.layer, _bert
    if kind == "post":
        return model.model.decoder.layers, _opt
    return model.model.layers, _llama


def _final(model: nn.Module, kind: str) -> tuple[nn.Module, str]:
    """OPT with norms behind the addition has no final norm; a masked model has one in its head."""
    if kind == "encoder":
        return model.cls.predictions.transform, "LayerNorm"
    return (model.model.decoder, "final_layer_norm") if kind == "post" else (model.model, "norm")


def _positions(model: nn.Module, kind: str) -> Tensor | None:
    if kind == "encoder":
        return model.roformer.encoder.embed_positions.weight.data
    return model.model.decoder.embed_positions.weight.data if kind == "post" else None


def _llama(layer: nn.Module) -> Layer:
    attention, ffn = layer.self_attn, layer.mlp
    router = None
    if hasattr(ffn, "experts"):
        rise = tuple(half for expert in ffn.experts.gate_up_proj.data for half in expert.chunk(2))
        fall, router = tuple(ffn.experts.down_proj.data), ffn.gate.weight.data
    else:
        rise, fall = (ffn.gate_proj.weight.data, ffn.up_proj.weight.data), (ffn.down_proj.weight.data,)
    return Layer(
        module=layer,
        attention=attention,
        ffn=ffn,
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        out=attention.o_proj,
        rise=rise,
        fall=fall,
        attention_norms=_attention_norms(layer),
        ffn_norms=_ffn_norms(layer),
        router=router,
    )


def _attention_norms(layer: nn.Module) -> tuple[nn.Module, ...]:
    """In Llama's layers `post_attention_layernorm` stands before the FFN, in Gemma's and OLMo 2's behind the attention."""
    names = ["input_layernorm"]
    if hasattr(layer, "post_feedforward_layernorm"):
        names.append("post_attention_layernorm")
    return tuple(getattr(layer, name) for name in names if hasattr(layer, name))


def _ffn_norms(layer: nn.Module) -> tuple[nn.Module, ...]:
    names = ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if not hasattr(layer, "post_feedforward_layernorm"):
        names = ["post_attention_layernorm"]
    return tuple(getattr(layer, name) for name in names if hasattr(layer, name))


def _opt(layer: nn.Module) -> Layer:
    attention = layer.self_attn
    return Layer(
        module=layer,
        attention=attention,
        ffn=layer.fc2,
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        out=attention.out_proj,
        rise=(layer.fc1.weight.data,),
        fall=(layer.fc2.weight.data,),
        attention_norms=(layer.self_attn_layer_norm,),
        ffn_norms=(layer.final_layer_norm,),
    )


def _bert(layer: nn.Module) -> Layer:
    inner = layer.attention.self
    return Layer(
        module=layer,
        attention=inner,
        ffn=layer.output.dense,
        query=inner.query,
        key=inner.key,
        value=inner.value,
        out=layer.attention.output.dense,
        rise=(layer.intermediate.dense.weight.data,),
        fall=(layer.output.dense.weight.data,),
        attention_norms=(layer.attention.output.LayerNorm,),
        ffn_norms=(layer.output.LayerNorm,),
    )
