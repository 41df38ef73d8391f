"""What the demo does, and how long each stage takes. No torch here: `normlab demo --help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass

from normlab.errors import ConfigError, canonical, unknown
from normlab.experiments.atlas.request import AtlasRequest
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.runs.score import HeldOut

STAGES = ("atlas", "training", "fault")
THREE = ("pre_norm", "post_norm", "block_attn_res")
# One rate for all arms: the demo shows what can happen, it does not compare. At 8 layers, width 64 and 300 steps (random
# seed 0) Post-Norm ends at 3.36 nats without a warm-up (a model that ignores the context: 3.34) and at 2.34 with one; at
# 3e-3 it learns either way (2.10 without, 2.14 with).
RATE = 1e-2
WARMUPS = (0.0, 0.5)  # share of the steps: each scheme is trained without a warm-up and with one
LOOKS = tuple(i / 12 for i in range(13))


@dataclass(frozen=True)
class Fault:
    """One norm gain of a trained model is multiplied: what a wrong conversion or a broken update leaves behind."""

    scheme: str = "pre_norm"
    layer: int = 4  # from 0, as `diagnose` counts
    factor: float = 4.0  # of queries and keys alike: the logits of attention grow by its square


@dataclass(frozen=True)
class DemoSettings:
    """The seconds are those of two quiet cores."""

    atlas: AtlasRequest
    training: CompareRequest
    fault: Fault
    seconds: tuple[int, int, int] = (20, 60, 15)

    @property
    def sentence(self) -> str:
        return f"about {_minutes(sum(self.seconds))} on two cores; Ctrl-C goes on to the next stage"


def settings(*, schemes: tuple[str, ...] = ("all",), depth: int = 8, dim: int = 64, steps: int = 300) -> DemoSettings:
    """The demo; smaller in tests."""
    batch, length = 8, 64
    measure = HeldOut(
        validations=min(30, steps), curve_sequences=16, sequences=64, layers=LOOKS, layer_sequences=8,
        gradient_batches=1, prune=False,
    )  # fmt: skip
    return DemoSettings(
        atlas=AtlasRequest(schemes=schemes, depth=3 * depth, dim=dim, batch=2, length=32, rounds=1),
        training=CompareRequest(
            schemes=THREE, depths=(depth,), dim=dim, heads=4, batch=batch, length=length, tokens=batch * length * steps,
            seeds=1, lrs=(RATE,), extend=0, warmup=0.0, measure=measure,
        ),
        fault=Fault(layer=depth // 2),
    )  # fmt: skip


def skipped(names: tuple[str, ...]) -> frozenset[str]:
    """The stages to leave out, by name or number."""
    found = set()
    for name in names:
        known = STAGES[int(name) - 1] if name in ("1", "2", "3") else canonical(name)
        if known not in STAGES:
            raise ConfigError(unknown("stage of the demo", name, STAGES))
        found.add(known)
    return frozenset(found)


def _minutes(seconds: int) -> str:
    return f"{seconds} seconds" if seconds < 90 else f"{seconds / 60:.2g} minutes"
