"""Measurements on networks that are trained for them: by length, and by the loss at the end."""

from normlab.experiments.claims.measured.trained import (
    averages,
    four_tasks,
    ladder,
    losses,
    noise,
    nulls_by_length,
    set_complement,
)

__all__ = ["averages", "four_tasks", "ladder", "losses", "noise", "nulls_by_length", "set_complement"]
