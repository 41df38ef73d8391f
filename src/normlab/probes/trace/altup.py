"""Gemma-3n: n streams [n, batch, tokens, d] that AltUp predicts and corrects around a layer with LAuReL.

    P = R X                                  AltUp's prediction; the layer reads x = P_0, its active stream
    a = (x + N(A(z)) + laurel(z)) / sqrt(2)  z = N(x)
    b = a + N(F(N(a)))
    X <- P + post (x) (b - x) + e            e: the layer's own embedding, on all streams but the active one

`predict` and `correct` are methods, so they are wrapped on the instance for the time of a `with` block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normlab.probes.trace.hooks import BranchGates, Layout, Part, Record
from normlab.probes.trace.roles import BranchRoles, LayerRoles
from normlab.probes.trace.tensors import find_weights, first_tensor, mismatch

BRANCHES = (
    BranchRoles("attention", "post_attention_layernorm", "self_attn"),
    BranchRoles("ffn", "post_feedforward_layernorm", "mlp"),
)
WATCHED = {
    "laurel": "laurel",
    "attention": "post_attention_layernorm",
    "ffn": "post_feedforward_layernorm",
    "embedding": "post_per_layer_input_norm",
}


class LayerTensors:
    """What the call of one layer has shown so far."""

    streams: Tensor
    predicted: Tensor
    prediction: Tensor
    read: Tensor
    laurel: Tensor
    attention: Tensor
    ffn: Tensor
    activated: Tensor
    correction: Tensor
    embedding: Tensor


def has_altup(layer: nn.Module) -> bool:
    return all(hasattr(layer, name) for name in ("altup", *WATCHED.values()))


class AltUpLayout(Layout):
    """The layers of Gemma-3n, and the norm whose input is what the head reads."""

    def __init__(self, model: nn.Module, layers: list[tuple[str, nn.Module]]) -> None:
        row = LayerRoles(type(layers[0][1]).__name__, BRANCHES)
        super().__init__(model, layers, {id(layer): row for _, layer in layers})
        owner = model.get_submodule(layers[0][0].rpartition(".")[0].rpartition(".")[0])
        self.norm = owner.get_submodule("norm")

    @property
    def placement(self) -> str:
        return "laurel, AltUp"

    def tracer(self, on_layer: Callable[[Record], None], *, weights: bool = False, verify: bool = False) -> AltUpTracer:
        return AltUpTracer(self, on_layer, weights=weights, verify=verify)


class AltUpTracer(AbstractContextManager["AltUpTracer"]):
    """The same contract as `Tracer`: a record for each layer call, given when it is known what is read next."""

    def __init__(
        self, layout: AltUpLayout, on_layer: Callable[[Record], None], *, weights: bool = False, verify: bool = False
    ) -> None:
        self.layout, self.on_layer, self.weights, self.verify = layout, on_layer, weights, verify
        self._handles: list[RemovableHandle] = []
        self._wrapped: list[nn.Module] = []
        self._reset()

    def _reset(self, *_: object) -> None:
        self._calls = 0
        self._pending: Record | None = None
        self._seen = LayerTensors()
        self._attention: Tensor | None = None
        self._attended: Tensor | None = None

    def __enter__(self) -> AltUpTracer:
        add = self._handles.append
        add(self.layout.model.register_forward_pre_hook(self._reset))
        add(self.layout.norm.register_forward_pre_hook(lambda _module, args: self._arrive(args[0])))
        for _, layer in self.layout.layers:
            altup: Any = layer.altup
            for name, module in WATCHED.items():
                add(layer.get_submodule(module).register_forward_hook(self._keeper(name)))
            add(layer.get_submodule("self_attn").register_forward_hook(self._attend))
            add(altup.correction_coefs.register_forward_hook(self._keeper("correction")))
            add(altup.prediction_coefs.register_forward_hook(self._keeper("prediction")))
            add(layer.register_forward_hook(self._finished))
            altup.predict = self._predicts(altup.predict, altup.config.altup_active_idx)
            altup.correct = self._corrects(altup.correct)
            self._wrapped.append(altup)
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for altup in self._wrapped:
            altup.__dict__.pop("predict", None)
            altup.__dict__.pop("correct", None)
        self._wrapped.clear()
        self._reset()

    def _keeper(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: object, output: object) -> None:
            setattr(self._seen, name, first_tensor(output))

        return hook

    def _attend(self, _module: nn.Module, _args: object, output: object) -> None:
        self._attended = first_tensor(output)
        self._attention = find_weights(output) if self.weights else None

    def _predicts(self, verb: Callable[[Tensor], Tensor], active: int) -> Callable[[Tensor], Tensor]:
        def predict(streams: Tensor) -> Tensor:
            predicted = verb(streams)
            self._arrive(predicted[active])
            self._seen.streams, self._seen.predicted, self._seen.read = streams, predicted, predicted[active]
            return predicted

        return predict

    def _corrects(self, verb: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        def correct(predicted: Tensor, activated: Tensor) -> Tensor:
            self._seen.activated = activated
            return verb(predicted, activated)

        return correct

    def _finished(self, module: nn.Module, _args: object, output: object) -> None:
        seen, after = self._seen, first_tensor(output)
        attention, ffn, x = seen.attention, seen.ffn, seen.read
        middle = (x + attention + seen.laurel) / math.sqrt(2)
        post = seen.correction + 1.0
        record = Record(
            self._calls, module, x, x, [Part("attention", x, attention, middle), Part("ffn", middle, ffn, x)]
        )
        record.weights, record.attended = self._attention, self._attended
        record.streams = after.permute(1, 2, 0, 3)
        record.gates, n = [BranchGates(None, post)], len(after)
        mixing = seen.prediction.unflatten(-1, (n, n)) + torch.eye(n, device=after.device)
        record.mixings = [mixing]
        if self.verify:
            record.checks = self._checks(after, middle, post, mixing)
        self._pending, self._seen = record, LayerTensors()
        self._calls += 1

    def _checks(self, after: Tensor, middle: Tensor, post: Tensor, mixing: Tensor) -> list[tuple[str, float]]:
        seen = self._seen
        predicted = torch.einsum("btji,ibtd->jbtd", mixing, seen.streams)
        activated, innovation = seen.activated, seen.activated - seen.read
        inside = middle + seen.ffn
        expected = seen.predicted + post.permute(2, 0, 1).unsqueeze(-1) * innovation
        others = torch.arange(len(expected), device=expected.device) != 0
        expected = expected + others.view(-1, 1, 1, 1) * seen.embedding
        return [
            ("AltUp predicts R X", mismatch(seen.predicted, predicted, seen.predicted)),
            ("the layer computes (x + attention + laurel) / sqrt(2) + FFN", mismatch(inside, activated, innovation)),
            ("the streams are prediction + post (x) change + embedding", mismatch(after, expected, innovation)),
        ]

    def _arrive(self, h: Tensor) -> None:
        if self._pending is not None:
            record, self._pending = self._pending, None
            record.after = record.parts[-1].after = h
            self.on_layer(record)
