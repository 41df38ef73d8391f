"""Whole layers and their matrices: bad shards, bad merges, broken conversions, bad quantisation."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..anatomy import Layer, dissect, gain, set_gain
from ..backbones import Backbone, load
from ..protocol import Dice, Fault, Patient, Planted

GATED = ("pre", "peri", "res", "moe")


def matrices(layer: Layer) -> list[Tensor]:
    return [*(linear.weight.data for linear in layer.projections), *layer.rise, *layer.fall]


def scale_attention(layer: Layer, factor: float) -> None:
    layer.out.weight.data.mul_(factor)
    if layer.out.bias is not None:
        layer.out.bias.data.mul_(factor)


def scale_ffn(layer: Layer, factor: float) -> None:
    for matrix in layer.fall:
        matrix.mul_(factor)
    if isinstance(layer.ffn, nn.Linear) and layer.ffn.bias is not None:
        layer.ffn.bias.data.mul_(factor)


def copy_layer(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict({name: tensor.clone() for name, tensor in source.state_dict().items()})


def layer_of(backbone: Backbone, layer: int) -> nn.Module:
    return dissect(load(backbone), backbone.kind).stack[layer]


def reinitialised(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for matrix in matrices(patient.body.layers[layer]):
        matrix.copy_(0.04 * dice.normal(matrix))
    return Planted(f"every matrix of layer {layer} drawn anew, as if its keys were missing", (layer,))


def stale_shard(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    age = int(dice.choice((0, 30, 100)))
    copy_layer(layer_of(replace(patient.backbone, age=age), layer), patient.body.stack[layer])
    return Planted(f"layer {layer} comes from the checkpoint of step {age}", (layer,))


def foreign_layer(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    run = patient.backbone.run
    other = replace(patient.backbone, run=replace(run, seed=1 - run.seed))
    copy_layer(layer_of(other, layer), patient.body.stack[layer])
    return Planted(f"layer {layer} comes from a model of another seed", (layer,))


def averaged_models(patient: Patient, dice: Dice) -> Planted:
    run = patient.backbone.run
    other = load(replace(patient.backbone, run=replace(run, seed=1 - run.seed))).state_dict()
    for name, tensor in patient.model.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_((tensor + other[name]) / 2)
    return Planted("every weight is the mean of two models of different seeds")


def layers_swapped(patient: Patient, dice: Dice) -> Planted:
    first = dice.integer(0, patient.depth - 2)
    second = first + 2
    one, other = patient.body.stack[first], patient.body.stack[second]
    kept = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    copy_layer(other, one)
    other.load_state_dict(kept)
    return Planted(f"layers {first} and {second} changed places", (first, second))


def layer_loaded_twice(patient: Patient, dice: Dice) -> Planted:
    layer = dice.integer(0, patient.depth - 1)
    copy_layer(patient.body.stack[layer], patient.body.stack[layer + 1])
    return Planted(f"layer {layer + 1} holds a copy of layer {layer}", (layer, layer + 1))


def attention_missing(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    scale_attention(patient.body.layers[layer], 0.0)
    return Planted(f"the attention of layer {layer} writes nothing: its output matrix was filled with zeros", (layer,))


def branch_faint(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient), dice.choice((0.02, 0.05, 0.1))
    part = patient.body.layers[layer]
    if patient.kind in ("peri", "res"):  # their branches end in a norm: its gain is the size
        set_gain(part.ffn_norms[-1], gain(part.ffn_norms[-1]) * factor)
    else:
        scale_ffn(part, factor)
    return Planted(f"the FFN of layer {layer} writes {factor} of what it should", (layer,))


def branch_loud(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient), dice.choice((5.0, 8.0, 16.0))
    part = patient.body.layers[layer]
    if patient.kind in ("peri", "res"):
        set_gain(part.attention_norms[-1], gain(part.attention_norms[-1]) * factor)
    else:
        scale_attention(part, factor)
    return Planted(f"the attention of layer {layer} writes {factor:g} times what it should", (layer,))


def sign_flipped(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    part = patient.body.layers[layer]
    scale_attention(part, -1.0)
    scale_ffn(part, -1.0)
    return Planted(f"both branches of layer {layer} are subtracted instead of added", (layer,))


def late_branches_faint(patient: Patient, dice: Dice) -> Planted:
    half = tuple(range(patient.depth // 2, patient.depth))
    factor = dice.choice((0.05, 0.15))
    for layer in half:
        scale_attention(patient.body.layers[layer], factor)
        scale_ffn(patient.body.layers[layer], factor)
    return Planted(
        f"a depth scale of {factor} was folded into the layers {half[0]} to {half[-1]} that needed none", half
    )


def low_rank_ffn(patient: Patient, dice: Dice) -> Planted:
    layer, rank = dice.layer(patient), int(dice.choice((1, 2, 4)))
    for matrix in (*patient.body.layers[layer].rise, *patient.body.layers[layer].fall):
        left, size, right = torch.linalg.svd(matrix, full_matrices=False)
        matrix.copy_(left[:, :rank] * size[:rank] @ right[:rank])
    return Planted(f"the FFN matrices of layer {layer} have rank {rank}", (layer,))


def low_rank_attention(patient: Patient, dice: Dice) -> Planted:
    layer, rank = dice.layer(patient, inner=False), int(dice.choice((1, 3)))
    for linear in patient.body.layers[layer].projections:
        left, size, right = torch.linalg.svd(linear.weight.data, full_matrices=False)
        linear.weight.data.copy_(left[:, :rank] * size[:rank] @ right[:rank])
    return Planted(f"the attention matrices of layer {layer} have rank {rank}", (layer,))


def rotated(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    part = patient.body.layers[layer]
    turn, _ = torch.linalg.qr(dice.normal(part.out.weight))
    for matrix in (part.out.weight.data, *part.fall):
        matrix.copy_(turn @ matrix)
    return Planted(f"layer {layer} writes in another basis: a rotation was not undone", (layer,))


def transposed(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    weight = patient.body.layers[layer].out.weight.data
    weight.copy_(weight.T.clone())
    return Planted(f"the attention's output matrix of layer {layer} is transposed", (layer,))


def two_bits(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for matrix in matrices(patient.body.layers[layer]):
        step = matrix.abs().max() / 1.5
        matrix.copy_(((matrix / step - 0.5).round().clamp(-2, 1) + 0.5) * step)
    return Planted(f"the matrices of layer {layer} in two bits with one scale each", (layer,))


def wrong_block_scale(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient), dice.choice((16.0, 64.0))
    matrix = patient.body.layers[layer].rise[0]
    start = dice.integer(0, matrix.shape[0] - 16)
    matrix[start : start + 16].mul_(factor)
    return Planted(f"16 rows of an FFN matrix of layer {layer} got a scale {factor:g} times too large", (layer,))


def flushed_to_zero(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for matrix in matrices(patient.body.layers[layer]):
        matrix[matrix.abs() < 1.7 * matrix.std()] = 0
    return Planted(f"weights of layer {layer} below 1.7 standard deviations underflowed to zero", (layer,))


def bit_rot(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient, inner=False)
    matrix = patient.body.layers[layer].fall[0]
    for _ in range(3):
        row, column = dice.integer(0, matrix.shape[0]), dice.integer(0, matrix.shape[1])
        matrix[row, column] = dice.choice((-40.0, 40.0, 160.0))
    return Planted(f"three weights of the FFN of layer {layer} lost a bit of their exponent", (layer,))


def not_a_number(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient, inner=False)
    weight = patient.body.layers[layer].value.weight.data
    row = dice.integer(0, weight.shape[0])
    weight[row] = float("nan")
    return Planted(f"row {row} of the value matrix of layer {layer} is NaN", (layer,))


def gate_and_up_swapped(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        for gate, up in zip(layer.rise[::2], layer.rise[1::2], strict=True):
            kept = gate.clone()
            gate.copy_(up)
            up.copy_(kept)
    return Planted("gate and up matrices changed places in every layer")


def dead_units(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for matrix in patient.body.layers[layer].fall:
        matrix[:, dice.several(matrix.shape[1], int(0.85 * matrix.shape[1]))] = 0
    return Planted(f"85 % of the hidden units of the FFN of layer {layer} reach nobody", (layer,))


def dropout_left_on(patient: Patient, dice: Dice) -> Planted:
    share = dice.choice((0.2, 0.4))
    for layer in patient.body.layers:
        layer.ffn.register_forward_hook(
            lambda module, args, output: nn.functional.dropout(output, share, training=True)
        )
    return Planted(f"a dropout of {share} behind every FFN that eval() does not switch off")


def saturated(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)

    def clip(module: nn.Module, args: object, output: Tensor) -> Tensor:
        return output.clamp(-0.1, 0.1) * 10

    patient.body.layers[layer].ffn.register_forward_hook(clip)
    return Planted(f"the FFN output of layer {layer} saturates: clipped at 0.1, then rescaled tenfold", (layer,))


FAULTS = (
    Fault("layer re-initialised", "weights", reinitialised, accepted=("branches", "causal", "gradients", "stream")),
    Fault("stale shard", "weights", stale_shard, accepted=("branches", "causal", "gradients", "training")),
    Fault("layer of another seed", "causal", foreign_layer, accepted=("weights", "branches", "gradients")),
    Fault("two models averaged", "loss", averaged_models, accepted=("training", "causal", "weights", "branches")),
    Fault("layers swapped", "causal", layers_swapped, accepted=("branches", "stream", "gradients", "weights")),
    Fault("layer loaded twice", "weights", layer_loaded_twice, accepted=("causal",)),
    Fault("attention output missing", "branches", attention_missing, accepted=("weights", "heads", "causal")),
    Fault("faint FFN branch", "branches", branch_faint, accepted=("weights", "causal", "gradients")),
    Fault("loud attention branch", "branches", branch_loud, accepted=("weights", "causal", "stream", "gradients")),
    Fault("branches subtracted", "causal", sign_flipped, accepted=("branches", "gradients", "weights")),
    Fault(
        "late branches faint",
        "branches",
        late_branches_faint,
        accepted=("weights", "causal", "stream", "gradients"),
        kinds=("pre", "post", "moe", "encoder"),
    ),
    Fault("FFN of low rank", "weights", low_rank_ffn, accepted=("branches", "causal"), abnormal="its rank"),
    Fault(
        "attention of low rank", "weights", low_rank_attention, accepted=("attention", "heads", "branches", "causal")
    ),
    Fault("writes in another basis", "causal", rotated, accepted=("weights", "branches", "gradients")),
    Fault("output matrix transposed", "causal", transposed, accepted=("weights", "branches", "heads", "gradients")),
    Fault("two-bit layer", "weights", two_bits, accepted=("branches", "causal", "gradients")),
    Fault("wrong block scale", "weights", wrong_block_scale, accepted=("branches", "stream", "causal", "gradients")),
    Fault("weights flushed to zero", "weights", flushed_to_zero, accepted=("branches", "causal", "heads")),
    Fault("bit rot", "weights", bit_rot, accepted=("branches", "stream", "causal", "gradients")),
    Fault("NaN in a row", "weights", not_a_number, accepted=("stream", "loss")),
    Fault("gate and up swapped", "loss", gate_and_up_swapped, accepted=("weights", "branches", "causal"), kinds=GATED),
    Fault("dead hidden units", "weights", dead_units, accepted=("branches", "causal"), abnormal="columns of zeros"),
    Fault("dropout left on", "loss", dropout_left_on, accepted=("training", "branches", "stream", "causal")),
    Fault(
        "saturated FFN",
        "branches",
        saturated,
        accepted=("stream", "causal", "weights", "gradients"),
        kinds=("pre", "post", "moe", "encoder"),  # elsewhere a norm behind the FFN undoes most of it
    ),
)
