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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import TypedDict

from normlab.errors import ConfigError
from normlab.probes.inputs.losses import call
from normlab.probes.measure.streams import stream_numbers
from normlab.probes.trace.hooks import Layout, Record
from normlab.probes.trace.locate import locate_all, locate_known
from normlab.probes.trace.wrappers import is_compiled, unwrapped


class MonitorOptions(TypedDict, total=False):
    """What `Monitor` takes besides the model and `every`: callbacks hand it on."""

    parameters: bool
    sink: Callable[[int, dict[str, float]], None] | None
    example: object


class Monitor:
    """Keys are `{group}/layer_{i}/{metric}`, plus `{group}/mean/{metric}` and, for gradients, `gradient/total/norm`.

    Groups: `stream` (norm, rms), `attention` and `ffn` (ratio to the stream), `gradient` (norm per layer), and for several
    streams `streams`, with the names of a diagnosis (homogenisation, effective_streams, mixing_keeps, ...). Branches of other
    kinds are groups too (`cross_attention`, `mixer`), and in an encoder-decoder a layer is `encoder_layer_{i}`. With
    `parameters=True`, also `parameter/{name}/gradient` for every parameter: many keys, so off by default.
    `sink(step, values)` is called with each measured step's values, in addition to what `step` returns. A model that the
    table of architectures does not know is read from the first batch that is measured, or from `example`.
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
        self.layouts = locate_known(self.model) if example is None else _located(self.model, example)
        self.count = 0
        self.seconds = 0.0
        self._started = time.perf_counter()
        self._begun: float | None = None
        self._steps: dict[bool, deque[float]] = {kind: deque(maxlen=256) for kind in (False, True)}  # measured or not
        self._tracer: ExitStack | None = None
        self._waiting: list[RemovableHandle] = []  # for the first batch
        self._stance: Any = None
        self._sums: dict[str, Tensor] = {}
        self._calls: dict[str, int] = {}

    @property
    def layout(self) -> Layout:
        """The last stack of layers: of an encoder-decoder the decoder."""
        if not self.layouts:
            raise ConfigError("the layers are read from the first batch that is measured, and there was none yet")
        return self.layouts[-1]

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
            self._tracer = ExitStack()
            if self.layouts:
                self._trace(self._tracer)
            else:
                self._wait()

    def _trace(self, opened: ExitStack) -> None:
        for layout in self.layouts:

            def on_layer(record: Record, layout: Layout = layout) -> None:
                if layout.model.training:  # not in a validation pass
                    self._on_layer(record, _prefix(layout))

            opened.enter_context(layout.tracer(on_layer))

    def _wait(self) -> None:
        """Read the layers from the next call of the model, or of the part of it that a training step calls."""

        def first(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            self._stop_waiting()
            opened = self._tracer
            if opened is None:
                return
            with _quiet(self.model):
                self.layouts = locate_all(module, lambda: module(*args, **kwargs))
            inside = next(name for name, each in self.model.named_modules() if each is module)
            for layout in self.layouts if inside else []:
                layout.path = inside + "."
            self._trace(opened)

        for _, module in self.model.named_modules():
            if any(isinstance(part, (nn.ModuleList, nn.Sequential, nn.ModuleDict)) for part in module.modules()):
                self._waiting.append(module.register_forward_pre_hook(first, with_kwargs=True))

    def _stop_waiting(self) -> None:
        for handle in self._waiting:
            handle.remove()
        self._waiting.clear()

    def _on_layer(self, record: Record, prefix: str) -> None:
        """Reductions on the device; nothing is read back here."""
        if torch._C._current_graph_task_id() != -1:
            return  # a layer that is recomputed in the backward pass (checkpointing)
        start = time.perf_counter()
        with torch.no_grad():
            norm = torch.linalg.vector_norm(record.after.detach().float(), dim=-1).mean()
            self._add(f"stream/{prefix}{record.index}/norm", norm)
            self._add(f"stream/{prefix}{record.index}/rms", norm / record.after.shape[-1] ** 0.5)
            for part in record.parts:
                size = torch.linalg.vector_norm(part.added.detach().float(), dim=-1)
                base = torch.linalg.vector_norm(part.before.detach().float(), dim=-1)
                self._add(f"{part.kind}/{prefix}{record.index}/ratio", (size / base.clamp_min(1e-30)).mean())
            for name, value in stream_numbers(record).items():
                self._add(f"streams/{prefix}{record.index}/{name}", value.detach())
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
        for layout in self.layouts:
            for index, (_, layer) in enumerate(layout.layers):
                prefixes = tuple(layout.path + each for each in layout.prefixes(layer)["layer"])
                chosen = [i for i, name in enumerate(names) if name.startswith(prefixes)]
                if chosen:
                    self._add(f"gradient/{_prefix(layout)}{index}/norm", norms[chosen].square().sum().sqrt())
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
        self._stop_waiting()
        if self._tracer is not None:
            self._tracer.close()
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
        half, found, number = middle.rpartition("layer_")
        if found and number.isdigit():
            groups.setdefault(f"{group}/{half}mean/{metric}", []).append(value)
    return {key: sum(items) / len(items) for key, items in groups.items()}


def _norm(gradient: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # a sharded gradient: over all its shards


def _prefix(layout: Layout) -> str:
    return f"{layout.stack.replace('.', '_')}_layer_" if layout.stack else "layer_"


def _located(model: nn.Module, example: Any) -> list[Layout]:
    known = locate_known(model)
    if known:
        return known
    with _quiet(model):
        return locate_all(model, lambda: call(model, example))


@contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """Eval mode for the time of the block; the random numbers of the run are left as they were."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
