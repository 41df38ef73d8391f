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

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import ConfigError
from normlab.probes.infer import infer_row
from normlab.probes.locate import find_layers
from normlab.probes.roles import row_for
from normlab.probes.scheme_trace import SchemeLayout, speaks_verbs
from normlab.probes.trace import Layout, Record, tracer


class Monitor:
    """Keys are `{group}/layer_{i}/{metric}`, plus `{group}/mean/{metric}` and, for gradients, `gradient/total/norm`.

    Groups: `stream` (norm, rms), `attention` and `ffn` (ratio to the stream), `gradient` (norm per layer). With
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
        self.model = _unwrap(model)
        self.layout = _layout(self.model, example)
        self.count = 0
        self.seconds = 0.0
        self._started = time.perf_counter()
        self._tracer: Any = None
        self._sums: dict[str, Tensor] = {}
        self._calls: dict[str, int] = {}

    @property
    def measuring(self) -> bool:
        """Is the step that is running now a measured one?"""
        return self.count % self.every == 0

    def before_step(self) -> None:
        """Call before the first forward pass of an optimizer step (again before each of its micro-batches is harmless)."""
        if self.measuring and self._tracer is None:
            self._tracer = tracer(self.layout, self._on_layer).__enter__()

    def _on_layer(self, record: Record) -> None:
        """Reductions on the device; nothing is read back here."""
        if torch.is_grad_enabled() and not record.before.requires_grad:
            return
        start = time.perf_counter()
        with torch.no_grad():
            norm = torch.linalg.vector_norm(record.after.detach().float(), dim=-1).mean()
            self._add(f"stream/layer_{record.index}/norm", norm)
            self._add(f"stream/layer_{record.index}/rms", norm / record.after.shape[-1] ** 0.5)
            for part in record.parts:
                size = torch.linalg.vector_norm(part.added.detach().float(), dim=-1)
                base = torch.linalg.vector_norm(part.before.detach().float(), dim=-1)
                self._add(f"{part.kind}/layer_{record.index}/ratio", (size / base.clamp_min(1e-30)).mean())
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
            norms = torch.stack(torch._foreach_norm([_local(g.detach()) for _, g in named])).float()
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
        if self._tracer is not None:
            self._tracer.__exit__(None, None, None)
            self._tracer = None
        if self._sums:
            keys = list(self._sums)
            counts = torch.tensor([float(self._calls[key]) for key in keys])
            stacked = torch.stack([self._sums[key].to(self._sums[keys[0]].device) for key in keys])
            values = dict(zip(keys, (stacked.float().cpu() / counts).tolist(), strict=True))  # the one synchronisation
            values |= _means(values)
            self._sums, self._calls = {}, {}
            if self.sink is not None:
                self.sink(self.count, values)
        self.count += 1
        self.seconds += time.perf_counter() - start
        return values

    def close(self) -> str:
        """Remove what is attached; returns one line about the cost, measured against the time since the start."""
        if self._tracer is not None:
            self._tracer.__exit__(None, None, None)
            self._tracer = None
        total = time.perf_counter() - self._started
        measured = -(-self.count // self.every)
        share = 100 * self.seconds / total if total > 0 else 0.0
        return f"normlab.Monitor: {measured} of {self.count} steps measured, {self.seconds:.2f} s ({share:.2f} % of the run)"


def _means(values: dict[str, float]) -> dict[str, float]:
    """`{group}/mean/{metric}` over the layers: a key that stays the same when the depth changes."""
    groups: dict[str, list[float]] = {}
    for key, value in values.items():
        group, middle, metric = key.split("/")[0], key.split("/")[1], key.rsplit("/", 1)[-1]
        if middle.startswith("layer_"):
            groups.setdefault(f"{group}/mean/{metric}", []).append(value)
    return {key: sum(items) / len(items) for key, items in groups.items()}


def _local(gradient: Tensor) -> Tensor:
    """A sharded gradient (FSDP2's DTensor) is read as its local shard; the norms are then those of this rank."""
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def _unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile: parameters and modules are the same objects."""
    seen = model
    while True:
        inner = getattr(seen, "_orig_mod", None) or (seen.module if _is_parallel(seen) else None)
        if inner is None:
            return seen
        seen = inner


def _is_parallel(model: nn.Module) -> bool:
    return type(model).__name__ in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def _layout(model: nn.Module, example: Any) -> Layout:
    if speaks_verbs(model):
        return SchemeLayout(model)
    layers = find_layers(model)
    layout = Layout(model, layers, {})
    for name, layer in layers:
        row = row_for(layer)
        if row is None and example is not None:
            from normlab.probes.losses import call

            row = infer_row(layer, lambda: call(model, example))
        if row is None:
            raise ConfigError(
                f"{type(layer).__name__} (at {name!r}) is not in the table of architectures; pass example=a batch, so "
                "that its parts can be inferred from data"
            )
        layout.rows[id(layer)] = row
    return layout


def as_batches(values: Iterable[Any]) -> list[Any]:
    return list(values)
