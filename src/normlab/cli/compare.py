"""`normlab compare`: which scheme should I use?"""

from __future__ import annotations

import typer

from normlab.cli._sweeps import sweep_command
from normlab.experiments.compare.request import CompareRequest


def register(app: typer.Typer) -> None:
    help = "Train every scheme at its own best learning rate, over seeds, and say what the numbers support."
    sweep_command(app, CompareRequest, help=help)
