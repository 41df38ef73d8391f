"""Training: one loop, averages of weights, many small models at once."""

from normlab.training.averaging import BEMA, EMA
from normlab.training.loop import AverageConfig, TrainConfig, Trainer, cross_entropy
from normlab.training.optim import Schedule

__all__ = ["BEMA", "EMA", "AverageConfig", "Schedule", "TrainConfig", "Trainer", "cross_entropy"]
