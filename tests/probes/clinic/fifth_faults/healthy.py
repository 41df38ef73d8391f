"""Healthy models in new clothes: other precision, shapes and parameters of the same function, and honest tuning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import dissect, gain, set_gain
from ..backbones import loss_of, windows
from ..blind_faults.gains import BEFORE
from ..blind_faults.tools import ROOT, Lesson, Variant, plays, school
from ..protocol import Dice, Patient
from ..unseen_faults.healthy import readers
from ..unseen_faults.tools import shouted


@torch.no_grad()
def vocabulary_padded(patient: Patient, dice: Dice) -> None:
    """To a multiple of 64, for the sake of speed; new rows are those of an id that no text contains."""
    model, size = patient.model, patient.body.embedding.num_embeddings
    model.resize_token_embeddings(pad_to_multiple_of=64, mean_resizing=False)
    patient.body = dissect(model, patient.kind)
    ends = [patient.body.embedding.weight] + ([] if patient.body.tied else [patient.body.head.weight])
    for weight in ends:
        weight[size:] = weight[size - 1]
    if patient.body.head.bias is not None:
        patient.body.head.bias[size:] = patient.body.head.bias[size - 1]


def mixed_precision(patient: Patient, dice: Dice) -> None:
    """Products in bfloat16, parameters and norms in float32."""
    forward = patient.model.forward

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = forward(*args, **kwargs)
        found.logits = found.logits.float()
        return found

    patient.model.forward = cast


def plain_descent(patient: Patient, dice: Dice) -> None:
    """A little tuning with momentum and no Adam."""
    model, generator = patient.model.train(), torch.Generator().manual_seed(5)
    learners = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learners, lr=0.003, momentum=0.9)
    for step in range(40):
        loss_of(model, plays(step), patient.kind, generator).backward()
        nn.utils.clip_grad_norm_(learners, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def capitals_besides(patient: Patient, dice: Dice) -> None:
    """A quarter of each batch in capitals, the rest as before."""

    def text(step: int) -> Tensor:
        rows = windows(8, 95_000 + step)
        return torch.cat([shouted(rows[:2]), rows[2:]])

    school(patient.model, patient.kind, Lesson(60, rate=2e-4, text=text))


def key_bias(patient: Patient, dice: Dice) -> None:
    """It moves all scores of a query alike."""
    for layer in patient.body.layers:
        layer.key.bias.data += dice.normal(layer.key.bias.data)


def repeated(linear: nn.Linear, groups: int, width: int) -> None:
    heads = linear.weight.detach().view(-1, width, linear.in_features).repeat_interleave(groups, 0)
    linear.weight = nn.Parameter(heads.flatten(0, 1).clone())
    linear.out_features = len(linear.weight)


def keys_repeated(patient: Patient, dice: Dice) -> None:
    """One key and value per query, for a runtime that knows no groups."""
    body, config = patient.body, patient.model.config
    groups = body.heads // body.key_heads
    for layer in body.layers:
        repeated(layer.key, groups, body.head_width)
        repeated(layer.value, groups, body.head_width)
        layer.attention.num_key_value_groups = 1
        norm = getattr(layer.attention, "k_norm", None)
        if norm is not None and patient.kind == "res":  # over all heads at once
            gains = norm.weight.detach().view(-1, body.head_width).repeat_interleave(groups, 0)
            norm.weight = nn.Parameter(gains.flatten().clone())
    config.num_key_value_heads = config.num_attention_heads
    patient.body = dissect(patient.model, patient.kind)


def other_windows(patient: Patient, dice: Dice) -> None:
    patient.windows = windows(16, 70 + dice.integer(0, 9), held_out=True)[:, :-1].contiguous()


def rounded_on_the_fly(patient: Patient, dice: Dice) -> None:
    """Eight bits per token with a scale of its own; on the way back as if nothing had been rounded."""

    def read(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        scale = args[0].detach().abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        return (args[0] + ((args[0] / scale).round() * scale - args[0]).detach(),)

    for module in patient.body.stack.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(read)


def gains_uneven(patient: Patient, dice: Dice) -> None:
    """Factors of the columns, moved from the matrices into the gains."""
    for layer in patient.body.layers:
        for norm, matrices in zip((layer.attention_norms[0], layer.ffn_norms[0]), readers(layer), strict=True):
            factors = dice.normal(gain(norm)).mul(0.3).exp()
            set_gain(norm, gain(norm) * factors)
            for matrix in matrices:
                matrix.div_(factors)


def dropout_configured(patient: Patient, dice: Dice) -> None:
    """For the next training; the model is in evaluation mode."""
    for module in patient.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
        for name in ("dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.1)


def zero_biases(patient: Patient, dice: Dice) -> None:
    """A format in which every linear layer has one."""
    for module in patient.body.stack.modules():
        if isinstance(module, nn.Linear):
            module.bias = nn.Parameter(torch.zeros(module.out_features))


def routers_shifted(patient: Patient, dice: Dice) -> None:
    """The same row added to all rows of a router: shares and choices stay."""
    for layer in patient.body.layers:
        layer.router.add_(0.3 * dice.normal(layer.router[:1]))


VARIANTS = (
    Variant("vocabulary padded", vocabulary_padded, tolerance=0.02),
    Variant("mixed precision", mixed_precision, tolerance=0.02),
    Variant("tuned by plain descent", plain_descent, tolerance=0.03),
    Variant("capitals learnt besides", capitals_besides, tolerance=0.03),
    Variant("key bias moved", key_bias, kinds=("post",)),
    Variant("keys and values repeated", keys_repeated, kinds=ROOT),
    Variant("other windows", other_windows),
    Variant("activations in eight bits", rounded_on_the_fly, tolerance=0.02),
    Variant("gains uneven, readers the inverse", gains_uneven, kinds=BEFORE),
    Variant("dropout configured, not active", dropout_configured),
    Variant("biases of zero added", zero_biases, kinds=ROOT),
    Variant("routers shifted alike", routers_shifted, kinds=("moe",)),
)
