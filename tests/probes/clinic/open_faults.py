"""The open half: faults that whoever writes the rules may look at. Same protocol as the half that is set aside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from .anatomy import Layer, gain, set_gain
from .protocol import CAUSAL, ROTARY, Dice, Fault, Patient, Planted

Plant = Callable[[Patient, Dice], Planted]


def in_a_layer(what: str, change: Callable[[Layer, Patient, Dice], None]) -> Plant:
    """A fault of one inner layer; `change` is applied to it."""

    def plant(patient: Patient, dice: Dice) -> Planted:
        layer = dice.layer(patient)
        with torch.no_grad():
            change(patient.body.layers[layer], patient, dice)
        return Planted(f"{what} in layer {layer}", (layer,))

    return plant


def everywhere(what: str, change: Callable[[Patient, Dice], None]) -> Plant:
    def plant(patient: Patient, dice: Dice) -> Planted:
        with torch.no_grad():
            change(patient, dice)
        return Planted(what)

    return plant


def scaled(matrices: Callable[[Layer], tuple[Tensor, ...]], factor: float) -> Callable[[Layer, Patient, Dice], None]:
    def change(layer: Layer, _patient: Patient, _dice: Dice) -> None:
        for matrix in matrices(layer):
            matrix *= factor

    return change


# -- gains ------------------------------------------------------------------------------------------------------------
def attention_gain(factor: float) -> Callable[[Layer, Patient, Dice], None]:
    def change(layer: Layer, _patient: Patient, _dice: Dice) -> None:
        norm = layer.attention_norms[0]
        set_gain(norm, gain(norm) * factor)

    return change


def ffn_gain(factor: float) -> Callable[[Layer, Patient, Dice], None]:
    def change(layer: Layer, _patient: Patient, _dice: Dice) -> None:
        norm = layer.ffn_norms[-1]
        set_gain(norm, gain(norm) * factor)

    return change


def one_gain_coordinate(layer: Layer, _patient: Patient, dice: Dice) -> None:
    norm = layer.attention_norms[0]
    values = gain(norm).clone()
    values[dice.integer(0, len(values))] *= 100
    set_gain(norm, values)


def half_of_a_gain(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    norm = layer.ffn_norms[0]
    values = gain(norm).clone()
    values[::2] = 0
    set_gain(norm, values)


def flipped_gain(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    norm = layer.attention_norms[0]
    values = gain(norm).clone()
    values[::2] *= -1
    set_gain(norm, values)


# -- matrices ---------------------------------------------------------------------------------------------------------
def value_and_out(layer: Layer) -> tuple[Tensor, ...]:
    return (layer.out.weight.data,)


def low_rank(matrix: Tensor, rank: int) -> None:
    u, s, v = torch.linalg.svd(matrix.float(), full_matrices=False)
    s[rank:] = 0
    matrix.copy_(u @ torch.diag(s) @ v)


def ffn_of_rank_two(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    for matrix in layer.fall:
        low_rank(matrix, 2)


def value_of_rank_two(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    low_rank(layer.value.weight.data, 2)


def new_start(layer: Layer, _patient: Patient, dice: Dice) -> None:
    for projection in layer.projections:
        projection.weight.copy_(0.04 * dice.normal(projection.weight))
        if projection.bias is not None:
            projection.bias.zero_()
    for matrix in (*layer.rise, *layer.fall):
        matrix.copy_(0.04 * dice.normal(matrix))
    for norm in layer.norms:
        set_gain(norm, torch.ones_like(gain(norm)))


def noise(layer: Layer, _patient: Patient, dice: Dice) -> None:
    for matrix in (layer.out.weight.data, layer.value.weight.data, *layer.fall):
        matrix += 3 * matrix.square().mean().sqrt() * dice.normal(matrix)


def dead_units(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    for matrix in layer.fall:
        matrix[:, : matrix.shape[1] * 3 // 4] = 0


def dead_output_rows(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    layer.out.weight[: layer.out.weight.shape[0] * 2 // 3] = 0


def transposed(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    layer.query.weight.copy_(layer.query.weight.T.clone())


def two_bits(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    for matrix in (*(projection.weight for projection in layer.projections), *layer.rise, *layer.fall):
        step = matrix.abs().amax() / 1.5
        matrix.copy_((matrix / step).round() * step)


def copied(patient: Patient, dice: Dice) -> Planted:
    layer = dice.integer(1, patient.depth - 1)
    patient.body.stack[layer + 1].load_state_dict(patient.body.stack[layer].state_dict())
    return Planted(f"layer {layer + 1} has the weights of layer {layer}", (layer, layer + 1))


def copied_far(patient: Patient, dice: Dice) -> Planted:
    patient.body.stack[patient.depth - 2].load_state_dict(patient.body.stack[1].state_dict())
    return Planted("the last layer but one has the weights of layer 1", (1, patient.depth - 2))


# -- heads ------------------------------------------------------------------------------------------------------------
def silent_head(layer: Layer, patient: Patient, dice: Dice) -> None:
    layer.out.weight[:, patient.body.query_rows(dice.integer(0, patient.body.heads))] = 0


def loud_head(layer: Layer, patient: Patient, dice: Dice) -> None:
    layer.out.weight[:, patient.body.query_rows(dice.integer(0, patient.body.heads))] *= 15


def frozen_queries(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    layer.query.weight.zero_()
    if layer.query.bias is not None:
        layer.query.bias.zero_()


def sharp_queries(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    layer.query.weight *= 25


# -- embeddings, positions, the end -------------------------------------------------------------------------------------
def embedding_times(factor: float) -> Callable[[Patient, Dice], None]:
    def change(patient: Patient, _dice: Dice) -> None:
        head = patient.body.head
        if patient.body.tied:  # a bad merge scales what is read, not what is predicted
            head.weight = nn.Parameter(head.weight.detach().clone())
        patient.body.embedding.weight *= factor

    return change


def common_vector(patient: Patient, dice: Dice) -> None:
    table = patient.body.embedding.weight
    table += 10 * table.norm(dim=1).median() / table.shape[1] ** 0.5 * dice.normal(table[0])


def embedding_of_rank_four(patient: Patient, _dice: Dice) -> None:
    low_rank(patient.body.embedding.weight.data, 4)


def common_letters_zero(patient: Patient, _dice: Dice) -> None:
    patient.body.embedding.weight[[ord(letter) for letter in "etaoin "]] = 0


def shuffled_embedding(patient: Patient, dice: Dice) -> None:
    table = patient.body.embedding.weight
    table[:256] = table[torch.randperm(256, generator=dice.generator)].clone()


def wrong_rotation(patient: Patient, dice: Dice) -> None:
    for table in patient.body.frequencies:
        table.copy_(table[torch.randperm(len(table), generator=dice.generator)])


def fast_rotation(patient: Patient, _dice: Dice) -> None:
    for table in patient.body.frequencies:
        table.mul_(30)


def final_gain(factor: float) -> Callable[[Patient, Dice], None]:
    def change(patient: Patient, _dice: Dice) -> None:
        norm = patient.body.final_norm
        assert norm is not None
        set_gain(norm, gain(norm) * factor)

    return change


def shuffled_final_gain(patient: Patient, dice: Dice) -> None:
    norm = patient.body.final_norm
    assert norm is not None
    values = gain(norm) * torch.exp(1.5 * dice.normal(gain(norm)))
    set_gain(norm, values)


def sees_the_future(patient: Patient, _dice: Dice) -> None:
    def hook(_module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return args, {**kwargs, "attention_mask": None, "is_causal": False}

    for layer in patient.body.layers:
        layer.attention.is_causal = False  # type: ignore[assignment]
        layer.attention.register_forward_pre_hook(hook, with_kwargs=True)


# -- experts ------------------------------------------------------------------------------------------------------------
def dead_expert(layer: Layer, _patient: Patient, dice: Dice) -> None:
    layer.fall[dice.integer(0, len(layer.fall))].zero_()


def loud_expert(layer: Layer, _patient: Patient, dice: Dice) -> None:
    layer.fall[dice.integer(0, len(layer.fall))].mul_(12)


def router_of_one(layer: Layer, _patient: Patient, dice: Dice) -> None:
    assert layer.router is not None
    layer.router[dice.integer(0, len(layer.router))] *= 40


def router_zero(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    assert layer.router is not None
    layer.router.zero_()


# -- training -------------------------------------------------------------------------------------------------------------
def everything_smaller(patient: Patient, _dice: Dice) -> None:
    for layer in patient.body.layers:
        for matrix in (layer.out.weight.data, *layer.fall):
            matrix *= 0.02


def everything_random(patient: Patient, dice: Dice) -> None:
    for parameter in patient.model.parameters():
        if parameter.dim() > 1:
            parameter.copy_(0.04 * dice.normal(parameter))


def not_a_number(layer: Layer, _patient: Patient, _dice: Dice) -> None:
    layer.value.weight[0, 0] = float("nan")


BROAD = ("branches", "weights", "attention", "heads", "causal")
GROWN = ("pre", "peri", "res", "moe")  # have a final norm on the stream
_PLANTED: tuple[Fault, ...] = (
    Fault(
        "attention gain x30",
        "weights",
        in_a_layer("attention gain x30", attention_gain(30)),
        accepted=("branches", "attention", "heads"),
    ),
    Fault(
        "attention gain /30",
        "weights",
        in_a_layer("attention gain /30", attention_gain(1 / 30)),
        accepted=("branches", "attention", "heads"),
    ),
    Fault("FFN gain x20", "weights", in_a_layer("FFN gain x20", ffn_gain(20)), accepted=("branches", "stream")),
    Fault("one gain coordinate x100", "weights", in_a_layer("one gain x100", one_gain_coordinate), accepted=BROAD),
    Fault("half of a gain zero", "weights", in_a_layer("half of the FFN gain is zero", half_of_a_gain), accepted=BROAD),
    Fault(
        "half of a gain flipped",
        "weights",
        in_a_layer("half of the gain has the wrong sign", flipped_gain),
        accepted=BROAD,
    ),
    Fault(
        "FFN output zero",
        "branches",
        in_a_layer("the FFN writes nothing", scaled(lambda l: l.fall, 0.0)),
        accepted=("weights", "experts"),
    ),
    Fault(
        "FFN output x10",
        "branches",
        in_a_layer("FFN output x10", scaled(lambda l: l.fall, 10.0)),
        accepted=("weights", "stream", "experts"),
    ),
    Fault(
        "attention output zero",
        "branches",
        in_a_layer("attention writes nothing", scaled(value_and_out, 0.0)),
        accepted=("weights", "heads", "attention"),
    ),
    Fault(
        "attention output x10",
        "branches",
        in_a_layer("attention output x10", scaled(value_and_out, 10.0)),
        accepted=("weights", "heads", "attention"),
    ),
    Fault("FFN of rank 2", "weights", in_a_layer("FFN of rank 2", ffn_of_rank_two), accepted=BROAD),
    Fault("values of rank 2", "weights", in_a_layer("values of rank 2", value_of_rank_two), accepted=BROAD),
    Fault("layer started anew", "weights", in_a_layer("random weights", new_start), accepted=(*BROAD, "training")),
    Fault("noise on a layer", "weights", in_a_layer("noise", noise), accepted=BROAD),
    Fault("dead FFN units", "weights", in_a_layer("three quarters of the units are dead", dead_units), accepted=BROAD),
    Fault(
        "dead output rows",
        "weights",
        in_a_layer("two thirds of the attention's outputs are dead", dead_output_rows),
        accepted=BROAD,
    ),
    Fault(
        "queries transposed",
        "weights",
        in_a_layer("the query matrix is transposed", transposed),
        accepted=BROAD,
        kinds=("pre", "post", "res", "moe", "encoder"),
    ),
    Fault("two bits", "weights", in_a_layer("weights of two bits", two_bits), accepted=BROAD),
    Fault("layer copied", "weights", copied, accepted=("causal",)),
    Fault("layer copied from afar", "weights", copied_far, accepted=("causal",)),
    Fault("silent head", "heads", in_a_layer("a head writes nothing", silent_head), accepted=("weights", "attention")),
    Fault(
        "loud head",
        "heads",
        in_a_layer("a head writes 15 times as much", loud_head),
        accepted=("weights", "branches", "attention"),
    ),
    Fault(
        "queries zero",
        "attention",
        in_a_layer("queries are zero", frozen_queries),
        accepted=("weights", "heads"),
        kinds=("pre", "post", "moe", "encoder"),
    ),
    Fault(
        "queries x25",
        "attention",
        in_a_layer("queries x25", sharp_queries),
        accepted=("weights", "heads"),
        kinds=("pre", "post", "moe", "encoder"),
    ),
    Fault(
        "embedding x30",
        "embeddings",
        everywhere("embedding x30", embedding_times(30)),
        accepted=("stream", "branches"),
        kinds=GROWN,
    ),
    Fault(
        "embedding /50",
        "embeddings",
        everywhere("embedding /50", embedding_times(1 / 50)),
        accepted=("stream", "branches"),
        kinds=GROWN,
    ),
    Fault(
        "a vector on all embeddings", "embeddings", everywhere("a common vector", common_vector), accepted=("stream",)
    ),
    Fault(
        "embedding of rank 4",
        "embeddings",
        everywhere("embedding of rank 4", embedding_of_rank_four),
        accepted=("weights", "loss", "stream"),
    ),
    Fault(
        "common letters zero",
        "embeddings",
        everywhere("common letters are zero", common_letters_zero),
        accepted=("loss",),
    ),
    Fault(
        "embedding shuffled",
        "loss",
        everywhere("rows of the embedding are shuffled", shuffled_embedding),
        accepted=("embeddings", "training"),
    ),
    Fault(
        "rotary frequencies shuffled",
        "embeddings",
        everywhere("frequencies are shuffled", wrong_rotation),
        accepted=("attention", "loss"),
        kinds=tuple(k for k in ROTARY if k != "encoder"),
    ),
    Fault(
        "rotary frequencies x30",
        "embeddings",
        everywhere("frequencies x30", fast_rotation),
        accepted=("attention", "loss"),
        kinds=tuple(k for k in ROTARY if k != "encoder"),
    ),
    Fault(
        "final gain x10",
        "final_norm",
        everywhere("final gain x10", final_gain(10)),
        accepted=("loss", "weights"),
        kinds=GROWN,
    ),
    Fault(
        "final gain /20",
        "final_norm",
        everywhere("final gain /20", final_gain(1 / 20)),
        accepted=("loss", "weights"),
        kinds=GROWN,
    ),
    Fault(
        "final gain noisy",
        "final_norm",
        everywhere("final gain noisy", shuffled_final_gain),
        accepted=("loss", "weights"),
        kinds=GROWN,
    ),
    Fault(
        "sees the future",
        "attention",
        everywhere("no causal mask", sees_the_future),
        accepted=("loss",),
        kinds=("pre", "res"),
    ),
    Fault(
        "dead expert",
        "experts",
        in_a_layer("an expert writes nothing", dead_expert),
        accepted=("weights",),
        kinds=("moe",),
    ),
    Fault(
        "loud expert",
        "experts",
        in_a_layer("an expert writes 12 times as much", loud_expert),
        accepted=("weights", "branches"),
        kinds=("moe",),
    ),
    Fault(
        "router of one",
        "experts",
        in_a_layer("a row of the router x40", router_of_one),
        accepted=("weights",),
        kinds=("moe",),
    ),
    Fault(
        "router zero", "experts", in_a_layer("the router is zero", router_zero), accepted=("weights",), kinds=("moe",)
    ),
    Fault(
        "branches shrunk",
        "branches",
        everywhere("all outputs x0.02", everything_smaller),
        accepted=("loss", "stream", "training", "weights"),
        kinds=("pre", "post", "moe", "encoder"),
    ),
    Fault(
        "not trained",
        "training",
        everywhere("all weights are random", everything_random),
        accepted=("loss",),
        kinds=CAUSAL,
    ),
    Fault("not a number", "weights", in_a_layer("a NaN", not_a_number)),
)

# Why faults count that the loss hardly notices: the number that is wrong in them.
REASONS = {
    "FFN gain x20": "the gain itself; a norm behind the branch can hide it from the loss",
    "FFN of rank 2": "its rank",
    "FFN output x10": "its size; a norm behind the branch takes it back",
    "FFN output zero": "it writes exactly nothing",
    "attention gain /30": "the gain itself; attention becomes uniform",
    "attention gain x30": "the gain itself; attention becomes sharp",
    "dead FFN units": "columns of zeros",
    "dead expert": "it writes exactly nothing",
    "half of a gain zero": "half of the coordinates are not read",
    "queries transposed": "attention asks for other keys than it learnt to",
    "queries x25": "their size; attention becomes sharp",
    "router of one": "one expert gets nearly all",
    "silent head": "the head writes exactly nothing",
    "values of rank 2": "their rank",
}
FAULTS: tuple[Fault, ...] = tuple(replace(fault, abnormal=REASONS.get(fault.name, "")) for fault in _PLANTED)
