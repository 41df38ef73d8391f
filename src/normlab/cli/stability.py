"""`normlab stability`: a map of learning rate x warm-up per scheme."""

from __future__ import annotations

import typer

from normlab.cli._sweeps import sweep_command
from normlab.experiments.stability.request import StabilityRequest


def register(app: typer.Typer) -> None:
    help = "Find how high the learning rate may go. For each warm-up, scheme and depth."
    sweep_command(app, StabilityRequest, help=help)
