"""Healthy models in new clothes: watched, wrapped, stored, computed or written differently, or trained a little."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from ..anatomy import Layer, gain, set_gain
from ..blind_faults.gains import BEFORE, path_norms
from ..blind_faults.healthy import both, permuted
from ..blind_faults.tools import Lesson, Variant, school
from ..protocol import CAUSAL, Dice, Patient

KERNEL = "normlab_clinic_in_chunks"


def watched(patient: Patient, dice: Dice) -> None:
    """Hooks that look and change nothing."""
    seen: dict[str, float] = {}
    for name, module in patient.body.stack.named_modules():

        def look(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            first = output[0] if isinstance(output, tuple) else output
            seen[name] = float(first.detach().float().abs().mean())

        module.register_forward_hook(look)


def checkpointed(patient: Patient, dice: Dice) -> None:
    patient.model.gradient_checkpointing_enable()


def stored_in_sixteen_bits(patient: Patient, dice: Dice) -> None:
    """Parameters in bfloat16; rotary frequencies stay in float32, as in files that are loaded so."""
    for parameter in patient.model.parameters():
        parameter.data = parameter.data.bfloat16()


def in_chunks(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention, 32 queries at a time."""
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    done = []
    for start in range(0, query.shape[2], 32):
        scores = query[:, :, start : start + 32] @ key.transpose(-1, -2) * scale
        if attention_mask is not None:
            scores = scores + attention_mask[:, :, start : start + 32, : key.shape[2]]
        done.append(scores.float().softmax(-1).to(value) @ value)
    return torch.cat(done, 2).transpose(1, 2).contiguous(), None


def another_kernel(patient: Patient, dice: Dice) -> None:
    AttentionInterface.register(KERNEL, in_chunks)
    AttentionMaskInterface.register(KERNEL, eager_mask)
    patient.model.set_attn_implementation(KERNEL)


def sizes_apart(patient: Patient, dice: Dice) -> None:
    """Each row as a length and a direction."""
    for layer in patient.body.layers:
        for linear in layer.projections:
            weight_norm(linear)


def scale_folded(patient: Patient, dice: Dice) -> None:
    """The scale of the scores, into the queries or into the gain of their norm."""
    for layer in patient.body.layers:
        norm = getattr(layer.attention, "q_norm", None)
        if norm is not None:
            set_gain(norm, gain(norm) * layer.attention.scaling)
        else:
            for tensor in both(layer.query):
                tensor.mul_(layer.attention.scaling)
        layer.attention.scaling = 1.0


def shorter_windows(patient: Patient, dice: Dice) -> None:
    patient.windows = patient.windows[:, : int(dice.choice((48, 64, 96)))].contiguous()


def upper_half_tuned(patient: Patient, dice: Dice) -> None:
    upper = tuple(p for layer in list(patient.body.stack)[patient.depth // 2 :] for p in layer.parameters())
    school(patient.model, patient.kind, Lesson(40, rate=1e-4), learners=upper)


def readers(layer: Layer) -> tuple[list[Tensor], list[Tensor]]:
    """What reads the stream, in attention and FFN."""
    attention = [linear.weight.data for linear in layer.projections[:3]]
    return attention, [*layer.rise, *([] if layer.router is None else [layer.router])]


def gains_negative(patient: Patient, dice: Dice) -> None:
    """A gain in ten has the other sign, and so have the columns that read it."""
    for layer in patient.body.layers:
        for norm, matrices in zip((layer.attention_norms[0], layer.ffn_norms[0]), readers(layer), strict=True):
            signs = torch.ones_like(gain(norm))
            signs[dice.several(len(signs), len(signs) // 10)] = -1.0
            set_gain(norm, gain(norm) * signs)
            for matrix in matrices:
                matrix.mul_(signs)


def written(patient: Patient, layer: Layer) -> list[Tensor]:
    """Matrices and biases whose rows are coordinates of the stream."""
    found = [layer.out.weight.data, *layer.fall]
    if patient.kind in ("post", "encoder"):
        found += [layer.out.bias.data, layer.ffn.bias.data]
    return found


def ends(patient: Patient) -> tuple[list[Tensor], list[Tensor]]:
    """(read by columns, written by rows) outside the layers."""
    body, model = patient.body, patient.model
    columns = [body.embedding.weight.data] + ([] if body.tied else [body.head.weight.data])
    if patient.kind == "post":
        return [*columns, body.positions], []
    if patient.kind == "encoder":
        front, back = model.roformer.embeddings, model.cls.predictions.transform.dense
        columns += [front.token_type_embeddings.weight.data, back.weight.data]
        return columns, [*both(front.LayerNorm), *both(back)]
    return columns, []


def coordinates_permuted(patient: Patient, dice: Dice) -> None:
    """Every norm, reader and writer takes part."""
    order = permuted(patient.body.embedding.weight.shape[1], dice)
    columns, rows = ends(patient)
    for norm in path_norms(patient):
        rows += [part.data for part in norm.parameters()]
    for layer in patient.body.layers:
        columns += [matrix for part in readers(layer) for matrix in part]
        rows += written(patient, layer)
    for matrix in columns:
        matrix.copy_(matrix[:, order])
    for tensor in rows:
        tensor.copy_(tensor[order])


def values_scaled(patient: Patient, dice: Dice) -> None:
    """Each head's values by a factor, and what reads them by its inverse."""
    body = patient.body
    for layer in body.layers:
        factors = dice.normal(torch.empty(body.key_heads)).mul(0.5).exp()
        for tensor in both(layer.value):
            tensor.mul_(factors.repeat_interleave(body.head_width).view(-1, *[1] * (tensor.dim() - 1)))
        for head in range(body.heads):
            layer.out.weight.data[:, body.query_rows(head)] /= factors[head * body.key_heads // body.heads]


class Adapted(nn.Linear):
    """A linear layer with an adapter beside it that has learnt nothing yet: its second factor is zero."""

    def __init__(self, base: nn.Linear, dice: Dice, rank: int = 4) -> None:
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None)
        self.weight, self.bias = base.weight, base.bias
        self.down = nn.Parameter(0.1 * dice.normal(base.weight[:rank].detach()))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, stream: Tensor) -> Tensor:
        return super().forward(stream) + stream @ self.down.T @ self.up.T


def adapter_attached(patient: Patient, dice: Dice) -> None:
    for layer in patient.body.layers:
        for name, child in list(layer.attention.named_children()):
            if child is layer.query or child is layer.value:
                setattr(layer.attention, name, Adapted(child, dice))


VARIANTS = (
    Variant("watched by hooks", watched),
    Variant("gradient checkpointing on", checkpointed),
    Variant("stored in bfloat16", stored_in_sixteen_bits, tolerance=0.02),
    Variant("another attention kernel", another_kernel, kinds=CAUSAL),
    Variant("lengths and directions apart", sizes_apart),
    Variant("scale folded into the queries", scale_folded, kinds=CAUSAL),
    Variant("shorter windows", shorter_windows),
    Variant("upper half tuned a little", upper_half_tuned, tolerance=0.03),
    Variant("some gains negative, readers too", gains_negative, kinds=BEFORE),
    Variant("coordinates of the stream permuted", coordinates_permuted),
    Variant("values of each head scaled", values_scaled),
    Variant("adapter attached, still zero", adapter_attached),
)
