"""Healthy models in other clothes: the same function written differently, or a change that nobody would call a fault."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..anatomy import Layer, gain, set_gain
from ..protocol import CAUSAL, Dice, Patient
from .adapters import low_rank
from .gains import BEFORE
from .tools import BIASED, ROOT, TIED, UNTIED, Lesson, Variant, matrices, rise_linear, rows_of, school

PLAIN = ("pre", "moe")  # norms before the branches, no norms on queries and keys


def both(linear: nn.Linear) -> list[Tensor]:
    return [linear.weight.data] if linear.bias is None else [linear.weight.data, linear.bias.data]


def permuted(count: int, dice: Dice) -> list[int]:
    return torch.randperm(count, generator=dice.generator).tolist()


def rotation(width: int, dice: Dice) -> Tensor:
    return torch.linalg.qr(dice.normal(torch.empty(width, width)).double())[0].float()


def hidden(layer: Layer) -> list[tuple[list[Tensor], Tensor]]:
    """(what makes the hidden units, what reads them), once per expert."""
    each = len(layer.rise) // len(layer.fall)
    bias = [] if each == 2 else [rise_linear(layer).bias.data]
    return [([*layer.rise[each * n : each * (n + 1)], *bias], fall) for n, fall in enumerate(layer.fall)]


def heads_permuted(patient: Patient, dice: Dice) -> None:
    """Groups among each other, and the queries inside each group."""
    body = patient.body
    size = body.heads // body.key_heads
    for layer in body.layers:
        groups = permuted(body.key_heads, dice)
        order = [group * size + inside for group in groups for inside in permuted(size, dice)]
        queries, keys = rows_of(order, body.head_width), rows_of(groups, body.head_width)
        for linear, rows in ((layer.query, queries), (layer.key, keys), (layer.value, keys)):
            for tensor in both(linear):
                tensor.copy_(tensor[rows])
        layer.out.weight.data.copy_(layer.out.weight.data[:, queries])
        if patient.kind == "res":  # its head norms are as wide as all heads
            for norm, rows in ((layer.attention.q_norm, queries), (layer.attention.k_norm, keys)):
                norm.weight.data.copy_(norm.weight.data[rows])


def units_permuted(patient: Patient, dice: Dice) -> None:
    for layer in patient.body.layers:
        for rising, fall in hidden(layer):
            order = permuted(fall.shape[1], dice)
            for tensor in rising:
                tensor.copy_(tensor[order])
            fall.copy_(fall[:, order])


def values_rotated(patient: Patient, dice: Dice) -> None:
    body = patient.body
    for layer in body.layers:
        turns = [rotation(body.head_width, dice) for _ in range(body.key_heads)]
        for tensor in both(layer.value):
            tensor.copy_(
                torch.cat([turn @ part for turn, part in zip(turns, tensor.chunk(body.key_heads), strict=True)])
            )
        for head in range(body.heads):
            rows = body.query_rows(head)
            part = layer.out.weight.data[:, rows]
            part.copy_(part @ turns[head * body.key_heads // body.heads].T)


def units_scaled(patient: Patient, dice: Dice) -> None:
    """The linear half of a gated unit, or a whole ReLU unit, with what reads it made smaller."""
    for layer in patient.body.layers:
        for rising, fall in hidden(layer):
            sizes = dice.normal(fall[0]).mul(0.4).exp()
            for tensor in rising[1:] if patient.kind in ROOT else rising:
                tensor.mul_(sizes[:, None] if tensor.dim() == 2 else sizes)
            fall.div_(sizes)


def units_negated(patient: Patient, dice: Dice) -> None:
    for layer in patient.body.layers:
        for rising, fall in hidden(layer):
            signs = dice.normal(fall[0]).sign()
            rising[1].mul_(signs[:, None])
            fall.mul_(signs)


@torch.no_grad()
def fold(layer: Layer) -> None:
    """The gains before the branches, into the matrices that read them."""
    for linear in (layer.query, layer.key, layer.value):
        linear.weight.mul_(gain(layer.attention_norms[0]))
    for matrix in (*layer.rise, *([] if layer.router is None else [layer.router])):
        matrix.mul_(gain(layer.ffn_norms[0]))


def gains_folded(patient: Patient, dice: Dice) -> None:
    for layer in patient.body.layers:
        fold(layer)
        for norm in (layer.attention_norms[0], layer.ffn_norms[0]):
            set_gain(norm, torch.ones_like(gain(norm)))


def final_gain_folded(patient: Patient, dice: Dice) -> None:
    final = patient.body.final_norm
    patient.body.head.weight.data.mul_(gain(final))
    set_gain(final, torch.ones_like(gain(final)))


def scores_rebalanced(patient: Patient, dice: Dice) -> None:
    for layer in patient.body.layers:
        factor = dice.choice((0.5, 1.6, 2.0))
        for tensor in both(layer.query):
            tensor.mul_(factor)
        for tensor in both(layer.key):
            tensor.div_(factor)


def pairs_turned(patient: Patient, dice: Dice) -> None:
    """Each rotary pair of queries and keys by one angle: turns commute."""
    body = patient.body
    width = body.head_width
    first = torch.arange(0, width, 2) if patient.kind == "encoder" else torch.arange(width // 2)
    second = first + 1 if patient.kind == "encoder" else first + width // 2
    for layer in body.layers:
        angles = dice.normal(torch.empty(width // 2)) * 3
        turn = torch.eye(width)
        turn[first, first] = turn[second, second] = angles.cos()
        turn[first, second], turn[second, first] = -angles.sin(), angles.sin()
        for linear, heads in ((layer.query, body.heads), (layer.key, body.key_heads)):
            for tensor in both(linear):
                tensor.copy_(torch.cat([turn @ part for part in tensor.chunk(heads)]))


def stream_rotated(patient: Patient, dice: Dice) -> None:
    """Root mean squares do not see a rotation once the gains are folded away."""
    gains_folded(patient, dice)
    final_gain_folded(patient, dice)
    turn = rotation(patient.body.embedding.weight.shape[1], dice)
    readers = [patient.body.embedding.weight.data, patient.body.head.weight.data]
    for layer in patient.body.layers:
        readers += [*(linear.weight.data for linear in layer.projections[:3]), *layer.rise]
        readers += [] if layer.router is None else [layer.router]
        for matrix in (layer.out.weight.data, *layer.fall):
            matrix.copy_(turn.T @ matrix)
    for matrix in readers:
        matrix.copy_(matrix @ turn)


def stream_scaled(patient: Patient, dice: Dice) -> None:
    """By a power of two, and the epsilons with it."""
    factor = dice.choice((2.0, 4.0))
    patient.body.embedding.weight.data.mul_(factor)
    patient.body.final_norm.variance_epsilon *= factor**2
    for layer in patient.body.layers:
        for norm in layer.norms:
            norm.variance_epsilon *= factor**2
        for matrix in (layer.out.weight.data, *layer.fall):
            matrix.mul_(factor)


def branches_scaled(patient: Patient, dice: Dice) -> None:
    """Before a norm the size of a branch means nothing."""
    for layer in patient.body.layers:
        for matrix, norm in ((layer.out.weight.data, layer.attention_norms[-1]), (layer.fall[0], layer.ffn_norms[-1])):
            factor = dice.choice((0.5, 2.0, 4.0))
            matrix.mul_(factor)
            if patient.kind == "res":
                norm.variance_epsilon *= factor**2
            else:
                norm.eps *= factor**2


def experts_permuted(patient: Patient, dice: Dice) -> None:
    for layer in patient.body.layers:
        order = permuted(len(layer.fall), dice)
        for stored in (layer.ffn.experts.gate_up_proj.data, layer.ffn.experts.down_proj.data, layer.router):
            stored.copy_(stored[order])


def logits_shifted(patient: Patient, dice: Dice) -> None:
    """One vector more in every row of the head: a softmax does not see it."""
    weight = patient.body.head.weight.data
    weight.add_(dice.normal(weight[0]) * weight.std())


def means_written(patient: Patient, dice: Dice) -> None:
    """One value more in all coordinates: the norm behind the addition takes it away."""
    for layer in patient.body.layers:
        for matrix in (layer.out.weight.data, *layer.fall):
            matrix.add_(0.5 * matrix.std() * dice.normal(matrix[0]))


def value_bias_moved(patient: Patient, dice: Dice) -> None:
    """Attention sums to one, so a bias of the values is one of the output."""
    for layer in patient.body.layers:
        layer.out.bias.data.add_(layer.out.weight.data @ layer.value.bias.data)
        layer.value.bias.data.zero_()


def head_apart(patient: Patient, dice: Dice) -> None:
    patient.body.head.weight = nn.Parameter(patient.body.head.weight.detach().clone())


def eager_attention(patient: Patient, dice: Dice) -> None:
    patient.model.set_attn_implementation("eager")


def all_frozen(patient: Patient, dice: Dice) -> None:
    patient.model.requires_grad_(False)


def in_training_mode(patient: Patient, dice: Dice) -> None:
    patient.model.train()


def in_double(patient: Patient, dice: Dice) -> None:
    patient.model.double()


def in_sixteen_bits(patient: Patient, dice: Dice) -> None:
    for parameter in patient.model.parameters():
        parameter.data.copy_(parameter.data.bfloat16().float())


def in_eight_bits(patient: Patient, dice: Dice) -> None:
    for layer in patient.body.layers:
        for matrix in matrices(layer):
            step = matrix.abs().amax(-1, keepdim=True) / 127
            matrix.copy_((matrix / step).round() * step)


def smallest_pruned(patient: Patient, dice: Dice) -> None:
    for layer in patient.body.layers:
        for matrix in matrices(layer):
            matrix[matrix.abs() < matrix.abs().flatten().kthvalue(matrix.numel() // 20).values] = 0.0


def went_on(patient: Patient, dice: Dice) -> None:
    school(patient.model, patient.kind, Lesson(40, rate=1e-4))


def averaged(patient: Patient, dice: Dice) -> None:
    """The mean of this checkpoint and of one a little later."""
    later = copy.deepcopy(patient.model)
    school(later, patient.kind, Lesson(30, rate=2e-4))
    for mine, other in zip(patient.model.parameters(), later.parameters(), strict=True):
        mine.data.lerp_(other.data, 0.5)


def adapter_merged(patient: Patient, dice: Dice) -> None:
    """Learnt on the plays, of rank 4, merged once with the right scale."""
    linears = [linear for layer in patient.body.layers for linear in layer.projections]
    before = [linear.weight.detach().clone() for linear in linears]
    school(patient.model, patient.kind, Lesson(30), learners=tuple(linear.weight for linear in linears))
    for linear, old in zip(linears, before, strict=True):
        linear.weight.data.copy_(old + low_rank(linear.weight.detach() - old))


VARIANTS = (
    Variant("heads permuted", heads_permuted),
    Variant("hidden units permuted", units_permuted),
    Variant("values rotated", values_rotated),
    Variant("hidden units scaled", units_scaled, kinds=(*ROOT, "post")),
    Variant("hidden units negated", units_negated, kinds=ROOT),
    Variant("gains folded in", gains_folded, kinds=BEFORE),
    Variant("final gain folded in", final_gain_folded, kinds=UNTIED),
    Variant("scores rebalanced", scores_rebalanced, kinds=(*PLAIN, *BIASED)),
    Variant("rotary pairs turned", pairs_turned, kinds=(*PLAIN, "encoder")),
    Variant("stream rotated", stream_rotated, kinds=PLAIN),
    Variant("stream scaled", stream_scaled, kinds=PLAIN),
    Variant("branches scaled before a norm", branches_scaled, kinds=("peri", "res")),
    Variant("experts and routers permuted", experts_permuted, kinds=("moe",)),
    Variant("logits shifted", logits_shifted, kinds=UNTIED),
    Variant("means written and taken away", means_written, kinds=BIASED),
    Variant("value bias moved", value_bias_moved, kinds=BIASED),
    Variant("head apart, equal", head_apart, kinds=TIED),
    Variant("eager attention", eager_attention),
    Variant("all parameters frozen", all_frozen),
    Variant("in training mode", in_training_mode),
    Variant("in double precision", in_double, kinds=("pre", "post", "peri", "res", "encoder")),
    Variant("rounded to 16 bits", in_sixteen_bits, tolerance=0.01),
    Variant("rounded to 8 bits per row", in_eight_bits, tolerance=0.01),
    Variant("smallest weights pruned", smallest_pruned, tolerance=0.02),
    Variant("trained a little longer", went_on, kinds=CAUSAL, tolerance=0.02),
    Variant("averaged with a later checkpoint", averaged, tolerance=0.02),
    Variant("adapter merged", adapter_merged, tolerance=0.02),
)
