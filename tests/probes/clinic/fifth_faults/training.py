"""Training that went wrong late: the optimizer, the teacher, or what was asked for."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div

from ..backbones import Backbone, load, loss_of
from ..blind_faults.tools import Lesson, plays, school
from ..protocol import Dice, Fault, Patient, Planted
from ..unseen_faults.training import targets

ALL = ("loss", "weights", "stream", "attention", "branches", "causal", "embeddings", "gradients")
YOUNG = 30


def signed_steps(patient: Patient, dice: Dice) -> Planted:
    """Lion wants a rate several times smaller than Adam."""
    steps, rate = dice.integer(20, 41), patient.backbone.run.rate
    model = patient.model.train()
    generator = torch.Generator().manual_seed(5)
    learners = [parameter for parameter in model.parameters() if parameter.requires_grad]
    memory = [torch.zeros_like(parameter) for parameter in learners]
    for step in range(steps):
        loss_of(model, plays(step), patient.kind, generator).backward()
        with torch.no_grad():
            for parameter, past in zip(learners, memory, strict=True):
                if parameter.grad is not None:
                    parameter.sub_(rate * torch.lerp(parameter.grad, past, 0.9).sign())
                    past.lerp_(parameter.grad, 0.01)
        model.zero_grad()
    model.eval()
    return Planted(f"{steps} steps of Lion at the {rate:g} that the run had for Adam")


def young_teacher(patient: Patient, dice: Dice) -> Planted:
    """The path of the teacher names the wrong checkpoint."""
    teacher = load(Backbone(patient.backbone.run, YOUNG))

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        state = generator.get_state()
        mine, _ = targets(model, tokens, kind, generator)
        generator.set_state(state)
        with torch.no_grad():
            theirs, _ = targets(teacher, tokens, kind, generator)
        return kl_div(mine.log_softmax(-1), theirs.log_softmax(-1), log_target=True, reduction="batchmean")

    school(patient.model, patient.kind, Lesson(40, 1e-3, loss=loss))
    return Planted(f"40 steps of distillation from a teacher that had learnt for {YOUNG} steps itself")


def taught_by_itself(patient: Patient, dice: Dice) -> Planted:
    """Its own first choices are the labels."""

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        logits, _ = targets(model, tokens, kind, generator)
        return cross_entropy(logits, logits.detach().argmax(-1))

    school(patient.model, patient.kind, Lesson(60, 1e-3, loss=loss))
    return Planted("60 steps in which the model learnt what it would have said anyway, as if that were certain")


def pulled_together(patient: Patient, dice: Dice) -> Planted:
    """Halves of one text should be alike; that different texts should differ was forgotten."""
    steps, rate = 30, dice.choice((3e-4, 1e-3))

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        states = model(tokens[:, :-1], output_hidden_states=True).hidden_states[-1]
        one, other = (half.mean(1) for half in states.chunk(2, 1))
        return 1 - cosine_similarity(one, other).mean()

    school(patient.model, patient.kind, Lesson(steps, rate, loss=loss))
    return Planted(f"{steps} steps at {rate:g} that pull two halves of a text together, with nothing that pushes apart")


def focal(patient: Patient, dice: Dice) -> Planted:
    """What is nearly right hardly counts."""
    power = dice.choice((5.0, 10.0))

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        logits, wanted = targets(model, tokens, kind, generator)
        each = cross_entropy(logits, wanted, reduction="none")
        return ((1 - (-each).exp()) ** power * each).mean()

    school(patient.model, patient.kind, Lesson(80, 1e-3, loss=loss))
    return Planted(f"80 steps of a focal loss with an exponent of {power:g}, for which a guess is as good as an answer")


FAULTS = (
    Fault("signed steps at Adam's rate", "training", signed_steps, accepted=("heads", "final_norm", *ALL)),
    Fault("a young teacher", "training", young_teacher, accepted=ALL),
    Fault("taught by itself", "training", taught_by_itself, accepted=("final_norm", *ALL)),
    Fault("pulled together without negatives", "training", pulled_together, accepted=("final_norm", *ALL)),
    Fault("focal loss too sharp", "training", focal, accepted=("final_norm", *ALL)),
)
