"""Both ends of the model and its norms: embeddings, head, final norm, gains, eps."""

from __future__ import annotations

import torch
from torch import nn

from ..anatomy import gain, set_gain
from ..protocol import Dice, Fault, Patient, Planted

UNTIED = ("pre", "res", "moe")
WITH_FINAL = ("pre", "peri", "res", "moe")
FREQUENT = b" etaoinshrl\ndu"


def own_head(patient: Patient) -> None:
    """Cut the tie between embedding and head, as a careless export does."""
    if patient.body.tied:
        patient.body.head.weight = nn.Parameter(patient.body.embedding.weight.detach().clone())


def embedding_drowns(patient: Patient, dice: Dice) -> Planted:
    factor = dice.choice((10.0, 30.0, 100.0))
    own_head(patient)
    patient.body.embedding.weight.data.mul_(factor)
    return Planted(f"the embedding is {factor:g} times too large")


def embedding_scale_lost(patient: Patient, dice: Dice) -> Planted:
    own_head(patient)
    patient.body.embedding.weight.data.mul_(patient.body.embedding.embedding_dim**-0.5)
    return Planted("the embedding lost its factor, the root of the width")


def ids_shifted(patient: Patient, dice: Dice) -> Planted:
    own_head(patient)
    weight = patient.body.embedding.weight.data
    weight.copy_(weight.roll(1, 0))
    return Planted("each token gets the embedding of the one before it in the vocabulary")


def rows_permuted(patient: Patient, dice: Dice) -> Planted:
    own_head(patient)
    weight = patient.body.embedding.weight.data
    rows = torch.tensor(list(range(97, 123)))
    order = torch.randperm(26, generator=dice.generator)
    weight[rows] = weight[rows[order]].clone()
    return Planted("the embeddings of the small letters are permuted: another tokenizer's order")


def rows_zero(patient: Patient, dice: Dice) -> Planted:
    own_head(patient)
    rows = list(FREQUENT[: int(dice.choice((3, 8, 14)))])
    patient.body.embedding.weight.data[rows] = 0
    return Planted(f"the embeddings of {len(rows)} frequent bytes are zero")


def rows_huge(patient: Patient, dice: Dice) -> Planted:
    own_head(patient)
    rows = [FREQUENT[index] for index in dice.several(10, 3)]
    patient.body.embedding.weight.data[rows] *= 50
    return Planted("the embeddings of three frequent bytes are 50 times too large")


def fresh_head(patient: Patient, dice: Dice) -> Planted:
    own_head(patient)
    patient.body.head.weight.data.copy_(0.04 * dice.normal(patient.body.head.weight))
    return Planted("the head is random: its key was missing")


def tied_by_mistake(patient: Patient, dice: Dice) -> Planted:
    patient.body.head.weight = patient.body.embedding.weight
    return Planted("the head was tied to the embedding, though it was trained apart")


def head_columns_shifted(patient: Patient, dice: Dice) -> Planted:
    own_head(patient)
    weight = patient.body.head.weight.data
    weight.copy_(weight.roll(patient.body.head_width, 1))
    return Planted("the head reads the coordinates of the stream in a shifted order")


def final_norm_skipped(patient: Patient, dice: Dice) -> Planted:
    setattr(patient.body.final_owner, patient.body.final_name, nn.Identity())
    return Planted("the final norm is skipped")


def final_gain_wrong(patient: Patient, dice: Dice) -> Planted:
    factor = dice.choice((0.1, 5.0, 20.0))
    norm = patient.body.final_norm
    assert norm is not None
    set_gain(norm, gain(norm) * factor)
    return Planted(f"the gain of the final norm is {factor:g} times what it was")


def gains_of_the_other_convention(patient: Patient, dice: Dice) -> Planted:
    """Gemma stores gains less one, others do not; a converter that forgets this adds or takes one."""
    shift = -1.0 if patient.kind == "peri" else 1.0
    for layer in patient.body.layers:
        for norm in layer.norms:
            set_gain(norm, gain(norm) + shift)
    return Planted(f"every gain {'less' if shift < 0 else 'plus'} one: the convention of another library")


def one_coordinate(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient, inner=False), dice.choice((30.0, 100.0))
    norms = patient.body.layers[layer].norms
    norm = norms[dice.integer(0, len(norms))]
    value = gain(norm).clone()
    coordinate = dice.integer(0, len(value))
    value[coordinate] *= factor
    set_gain(norm, value)
    return Planted(f"coordinate {coordinate} of a norm's gain in layer {layer} is {factor:g} times too large", (layer,))


def gain_nearly_zero(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient), dice.choice((0.0, 0.03))
    norm = patient.body.layers[layer].ffn_norms[0]
    set_gain(norm, gain(norm) * factor)
    return Planted(f"the gain of the FFN's norm in layer {layer} times {factor:g}", (layer,))


def gain_large(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient), dice.choice((6.0, 20.0))
    norm = patient.body.layers[layer].ffn_norms[0]
    set_gain(norm, gain(norm) * factor)
    return Planted(f"the gain of the FFN's norm in layer {layer} times {factor:g}", (layer,))


def eps_wrong(patient: Patient, dice: Dice) -> Planted:
    value = dice.choice((0.1, 1.0))
    for module in patient.model.modules():
        for name in ("variance_epsilon", "eps"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, value)
    return Planted(f"the eps of every norm is {value:g}")


FAULTS = (
    Fault(
        "embedding drowns the branches",
        "embeddings",
        embedding_drowns,
        accepted=("branches", "stream"),
        kinds=("pre", "peri", "res", "moe"),
    ),
    Fault(
        "embedding scale lost",
        "embeddings",
        embedding_scale_lost,
        accepted=("branches", "stream"),
        kinds=("pre", "peri", "res", "moe"),
    ),
    Fault("vocabulary shifted by one", "embeddings", ids_shifted, accepted=("loss", "training")),
    Fault("embedding rows permuted", "embeddings", rows_permuted, accepted=("loss",)),
    Fault("embedding rows zero", "embeddings", rows_zero, accepted=("loss", "stream", "weights")),
    Fault("embedding rows huge", "embeddings", rows_huge, accepted=("loss", "stream", "weights")),
    Fault("fresh head", "loss", fresh_head, accepted=("training", "embeddings", "weights", "final_norm")),
    Fault(
        "head tied by mistake", "loss", tied_by_mistake, accepted=("training", "embeddings", "final_norm"), kinds=UNTIED
    ),
    Fault(
        "head reads shifted coordinates",
        "loss",
        head_columns_shifted,
        accepted=("training", "embeddings", "final_norm"),
    ),
    Fault("final norm skipped", "final_norm", final_norm_skipped, accepted=("loss", "stream"), kinds=WITH_FINAL),
    Fault(
        "final gain wrong", "final_norm", final_gain_wrong, accepted=("loss", "weights"), kinds=(*WITH_FINAL, "encoder")
    ),
    Fault(
        "gains of the other convention",
        "weights",
        gains_of_the_other_convention,
        accepted=("branches", "stream", "loss", "attention"),
    ),
    Fault("one coordinate of a gain", "weights", one_coordinate, accepted=("branches", "stream", "attention", "heads")),
    Fault(
        "norm gain nearly zero",
        "weights",
        gain_nearly_zero,
        accepted=("branches", "causal", "stream", "gradients"),
        abnormal="the gain itself",
    ),
    Fault(
        "norm gain large",
        "weights",
        gain_large,
        accepted=("branches", "causal", "stream", "gradients"),
        abnormal="the gain itself",
    ),
    Fault(
        "eps far too large",
        "branches",
        eps_wrong,
        accepted=("weights", "stream", "loss", "final_norm", "embeddings", "causal"),
        kinds=("pre", "res", "moe", "peri"),
    ),
)
