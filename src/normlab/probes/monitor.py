"""`nl.Monitor`: the cheap part of a diagnosis, every k steps of a training run.

A plain loop:

    monitor = nl.Monitor(model, every=50)
    for batch in data:
        monitor.before_step()                  # arms the hooks if this step is measured
        loss = model(**batch).loss
        loss.backward()
        monitor.gradients()                    # before clipping; under accumulation, after the last backward
        clip_grad_norm_(...); optimizer.step(); optimizer.zero_grad()
        if values := monitor.step(): log(values)

Between measured steps there are no hooks at all. On a measured step everything stays on the device until one transfer
at the end of it, so a step is never synchronised by a metric.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from normlab.errors import ConfigError
from normlab.probes.inputs.losses import call
from normlab.probes.measure.streams import stream_numbers
from normlab.probes.trace.hooks import Layout, Record
from normlab.probes.trace.locate import locate
from normlab.probes.trace.wrappers import is_compiled, unwrapped


class MonitorOptions(TypedDict, total=False):
    """What `Monitor` takes besides the model and `every`: callbacks hand it on."""

    parameters: bool
    sink: Callable[[int, dict[str, float]], None] | None
    example: object


class Monitor:
    """Keys are `{group}/layer_{i}/{metric}`, plus `{group}/mean/{metric}` and, for gradients, `gradient/total/norm`.

    Groups: `stream` (norm, rms), `attention` and `ffn` (ratio to the stream), `gradient` (norm per layer), and for several
    streams `streams`, with the names of a diagnosis (homogenisation, effective_streams, mixing_keeps, ...). With
    `parameters=True`, also `parameter/{name}/gradient` for every parameter: many keys, so off by default.
    `sink(step, values)` is called with each measured step's values, in addition to what `step` returns.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 50,
        parameters: bool = False,
        sink: Callable[[int, dict[str, float]], None] | None = None,
        example: Any = None,
    ) -> None:
        if every < 1:
            raise ConfigError(f"every={every}: a monitor measures every k steps with k of at least 1")
        self.every, self.parameters, self.sink = every, parameters, sink
        self.model = unwrapped(model)
        self.compiled = is_compiled(model)
        self.layout = _layout(self.model, example)
        self.count = 0
        self.seconds = 0.0
        self._started = time.perf_counter()
        self._begun: float | None = None
        self._steps: dict[bool, deque[float]] = {kind: deque(maxlen=256) for kind in (False, True)}  # measured or not
        self._tracer: Any = None
        self._stance: Any = None
        self._sums: dict[str, Tensor] = {}
        self._calls: dict[str, int] = {}

    @property
    def measuring(self) -> bool:
        """Is the step that is running now a measured one?"""
        return self.count % self.every == 0

    def before_step(self) -> None:
        """Call before the forward pass; again before each micro-batch of the same optimizer step is harmless."""
        self._begun = time.perf_counter() if self._begun is None else self._begun
        if self.measuring and self._tracer is None:
            # Hooks that come after compilation are not seen by compiled code: a measured step runs eagerly.
            if self.compiled:
                self._stance = torch.compiler.set_stance("force_eager")
            self._tracer = self.layout.tracer(self._on_layer).__enter__()

    def _on_layer(self, record: Record) -> None:
        """Reductions on the device; nothing is read back here."""
        if not self.model.training or torch._C._current_graph_task_id() != -1:
            return  # a validation pass, or a layer that is recomputed in the backward pass (checkpointing)
        start = time.perf_counter()
        with torch.no_grad():
            norm = torch.linalg.vector_norm(record.after.detach().float(), dim=-1).mean()
            self._add(f"stream/layer_{record.index}/norm", norm)
            self._add(f"stream/layer_{record.index}/rms", norm / record.after.shape[-1] ** 0.5)
            for part in record.parts:
                size = torch.linalg.vector_norm(part.added.detach().float(), dim=-1)
                base = torch.linalg.vector_norm(part.before.detach().float(), dim=-1)
                self._add(f"{part.kind}/layer_{record.index}/ratio", (size / base.clamp_min(1e-30)).mean())
            for name, value in stream_numbers(record).items():
                self._add(f"streams/layer_{record.index}/{name}", value.detach())
        self.seconds += time.perf_counter() - start

    def _add(self, key: str, value: Tensor) -> None:
        self._sums[key] = self._sums[key] + value if key in self._sums else value
        self._calls[key] = self._calls.get(key, 0) + 1

    def gradients(self) -> None:
        """Call after the last backward pass of a step and before clipping."""
        if not self.measuring:
            return
        start = time.perf_counter()
        named = [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        if named:
            norms = torch.stack([_norm(gradient.detach()) for _, gradient in named])
            self._gradient_keys([name for name, _ in named], norms)
        self.seconds += time.perf_counter() - start

    def _gradient_keys(self, names: list[str], norms: Tensor) -> None:
        self._add("gradient/total/norm", norms.square().sum().sqrt())
        for index, (_, layer) in enumerate(self.layout.layers):
            prefixes = self.layout.prefixes(layer)["layer"]
            chosen = [i for i, name in enumerate(names) if name.startswith(prefixes)]
            if chosen:
                self._add(f"gradient/layer_{index}/norm", norms[chosen].square().sum().sqrt())
        if self.parameters:
            for name, norm in zip(names, norms, strict=True):
                self._add(f"parameter/{name}/gradient", norm)

    def step(self) -> dict[str, float]:
        """Call once per optimizer step; the values if this step was measured, else an empty dict."""
        values: dict[str, float] = {}
        start = time.perf_counter()
        self._detach()
        if self._sums:
            keys = list(self._sums)
            counts = torch.tensor([float(self._calls[key]) for key in keys])
            stacked = torch.stack([self._sums[key].to(self._sums[keys[0]].device) for key in keys])
            values = dict(zip(keys, (stacked.float().cpu() / counts).tolist(), strict=True))  # the one synchronisation
            values |= _means(values)
            self._sums, self._calls = {}, {}
            if self.sink is not None:
                self.sink(self.count, values)
        end = time.perf_counter()
        if self._begun is not None and self.count > 0:  # the first step warms up and would count as the monitor's cost
            self._steps[self.measuring].append(end - self._begun)
        self._begun = None
        self.count += 1
        self.seconds += end - start
        return values

    def _detach(self) -> None:
        if self._tracer is not None:
            self._tracer.__exit__(None, None, None)
            self._tracer = None
        if self._stance is not None:
            torch.compiler.set_stance("default")
            self._stance = None

    @property
    def overhead(self) -> float:
        """Seconds that measuring has cost: how much longer a measured step takes than another, hooks and all.

        Before there are both kinds of steps it is the time inside the monitor alone. On a compiled model a measured
        step runs eagerly, and that is in it.
        """
        measured, others = self._steps[True], self._steps[False]
        if not measured or not others:
            return self.seconds
        return max(0.0, statistics.median(measured) - statistics.median(others)) * -(-self.count // self.every)

    def close(self) -> str:
        """Remove what is attached; returns one line about the cost, measured against the time since the start."""
        self._detach()
        total = time.perf_counter() - self._started
        measured = -(-self.count // self.every)
        share = 100 * self.overhead / total if total > 0 else 0.0
        cost = f"{self.overhead:.2f} s, {share:.2f} % of the run"
        return f"normlab.Monitor: {measured} of {self.count} steps measured, {cost}"


def _means(values: dict[str, float]) -> dict[str, float]:
    """`{group}/mean/{metric}` over the layers: a key that stays the same when the depth changes."""
    groups: dict[str, list[float]] = {}
    for key, value in values.items():
        group, middle, metric = key.split("/")[0], key.split("/")[1], key.rsplit("/", 1)[-1]
        if middle.startswith("layer_"):
            groups.setdefault(f"{group}/mean/{metric}", []).append(value)
    return {key: sum(items) / len(items) for key, items in groups.items()}


def _norm(gradient: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # a sharded gradient: over all its shards


def _layout(model: nn.Module, example: Any) -> Layout:
    def run() -> Any:
        if example is None:
            raise ConfigError(
                f"{type(model).__name__} has layers that are not in the table of architectures; pass example=a batch, "
                "so that their parts can be inferred from data"
            )
        return call(model, example)

    return locate(model, run)
