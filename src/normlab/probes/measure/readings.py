"""Everything that was read of a model besides the table of layers: heads, weights, experts, what it says."""

from __future__ import annotations

from dataclasses import dataclass

from normlab.probes.measure.derivatives import DerivativeRow
from normlab.probes.measure.gradients import NoiseReading, PullRow
from normlab.probes.measure.outputs import OutputReading
from normlab.probes.measure.table import HeadRow, MaskRow, Number, Sparse
from normlab.probes.measure.trials.repair import RepairReading
from normlab.probes.measure.trials.run import TrialRow
from normlab.probes.measure.twin.compare import TwinReading
from normlab.probes.measure.weights import EmbeddingReading, ExpertTwin, GainRow, MatrixRow, MatrixTwin
from normlab.probes.measure.weights.experts import ExpertRow
from normlab.probes.measure.weights.functions import RepeatRow, TokenRow
from normlab.probes.measure.weights.gains import NormRow
from normlab.probes.measure.weights.response import ResponseRow
from normlab.probes.trace.identity import Breach
from normlab.probes.trace.structure.settings import SettingRow


@dataclass(frozen=True)
class Readings(Sparse):
    """None where an older file does not have it."""

    breaches: tuple[Breach, ...] | None = None  # layers that do not do to the stream what their row says
    uncalled: tuple[str, ...] | None = None  # layers of the stack that the forward pass leaves out
    heads: tuple[HeadRow, ...] = ()
    matrices: tuple[MatrixRow, ...] = ()
    gains: tuple[GainRow, ...] = ()
    embedding: EmbeddingReading | None = None
    head: EmbeddingReading | None = None  # where it has a matrix of its own
    experts: tuple[ExpertRow, ...] = ()
    output: OutputReading | None = None
    pulls: tuple[PullRow, ...] = ()
    noise: NoiseReading | None = None
    masks: tuple[MaskRow, ...] = ()
    norms: tuple[NormRow, ...] = ()
    expert_twins: tuple[ExpertTwin, ...] = ()
    responses: tuple[ResponseRow, ...] = ()
    trials: tuple[TrialRow, ...] = ()
    twins: tuple[MatrixTwin, ...] | None = None
    tokens: tuple[TokenRow, ...] | None = None
    repeats: tuple[RepeatRow, ...] | None = None
    settings: tuple[SettingRow, ...] | None = None
    twin: TwinReading | None = None  # beside a fresh instance of its class; None: its class is its own
    rows_apart: Number = None  # how far a row's predictions depend on the row beside it
    scales: tuple[MatrixTwin, ...] | None = None  # matrices that differ and whose rows have the same lengths
    repair: RepairReading | None = None  # what a few steps of training gain; small models only
    derivatives: tuple[DerivativeRow, ...] = ()  # the gradient beside differences of the loss
