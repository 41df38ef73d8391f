"""The theory laid over a real network: angles between tokens by branch, measured and predicted.

Two predictions start from the network's own input tokens and take from it two numbers a branch: how large its output
is, and how far its attention logits spread.

    kernel  the discrete layers of the scheme with fresh random weights, in the limit of large width (kernel.py)
    flow    the paper's setting, Q = K = V = I and attention only, as a differential equation with the same push sizes

Where the measured angles leave `kernel`, the weights are no longer unstructured: that is what training did.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from normlab.dynamics.fields import FIELDS, Field, Gain, Stage, field_name
from normlab.dynamics.flow.gram import GramSystem
from normlab.dynamics.flow.solver import Tolerance, integrate
from normlab.dynamics.networks.kernel import Push, kernel, mean_cosine, propagate
from normlab.dynamics.networks.readers import NetworkReading, read_blocks, read_transformer
from normlab.errors import InputError
from normlab.model import Transformer
from normlab.results import Plain, as_row


@dataclass(frozen=True)
class Bridge:
    """Mean cosine between tokens at each read (branches, or blocks for a foreign model), and the mean norm there.

    kernel_error, flow_error: the largest distance of a prediction from what was measured.
    """

    scheme: str
    kinds: list[str]
    measured: list[float]
    kernel: list[float]
    flow: list[float]
    radius: list[float]
    sizes: list[float]
    kernel_error: float = field(default=float("nan"))
    flow_error: float = field(default=float("nan"))

    def to_dict(self) -> dict[str, Plain]:
        return as_row(self)


def bridge(
    model: nn.Module, tokens: Tensor, *, scheme: str | None = None, spread: float = 0.0, causal: bool | None = None
) -> Bridge:
    """Measure a model on token ids [batch, time] and predict it.

    scheme  names a foreign model's norms; normlab's own model knows its scheme
    spread  standard deviation assumed of a foreign model's attention logits (measured on normlab's own)
    causal  whether a token sees only earlier ones; normlab's own model knows, a foreign one is taken to be causal
    """
    if tokens.dim() != 2 or tokens.shape[1] < 2:
        raise InputError(f"the bridge needs token ids [batch, time] with two tokens or more; got {tuple(tokens.shape)}")
    if isinstance(model, Transformer):
        name = field_name(scheme or model.config.scheme.name)
        reading = read_transformer(model, tokens, name)
        causal = model.config.causal if causal is None else causal
    else:
        if scheme is None:
            raise InputError(
                "a model that is not normlab's does not say where its norms are: give scheme='pre_norm' (GPT-2, Llama), "
                "'peri_norm' (Gemma 2 and 3), 'res_norm' (OLMo 2) or 'post_norm' (BERT)"
            )
        name = field_name(scheme)
        reading = read_blocks(model, tokens, name, spread)
        causal = True if causal is None else causal
    return _compare(name, reading, causal=causal)


def _compare(name: str, reading: NetworkReading, *, causal: bool) -> Bridge:
    kappa, every = kernel(*reading.activation), reading.every
    for read, state in enumerate(reading.states):
        if not np.isfinite(state).all() or not np.linalg.norm(state, axis=-1).min() > 0:
            raise InputError(
                f"at read {read} a token is zero or not finite, so it has no direction; is a padding token among the ids?"
            )
    count, length = len(reading.kinds), reading.states[0].shape[1]
    mask = np.tril(np.ones((length, length))) if causal else None
    measured, by_kernel, by_flow = (np.zeros(count // every + 1) for _ in range(3))
    batch = reading.states[0].shape[0]
    pushes = [_push(FIELDS[name], reading, i) for i in range(count)]
    for b in range(batch):
        grams = [state[b] @ state[b].T for state in reading.states]
        measured += [mean_cosine(k) / batch for k in grams]
        predicted = propagate(grams[0], pushes, mask=mask, kappa=kappa, seed=b)
        by_kernel += [mean_cosine(k) / batch for k in predicted[::every]]
        by_flow += np.array(_flow(grams[0], pushes, causal)[::every]) / batch
    return Bridge(
        name,
        list(reading.kinds),
        measured.tolist(),
        by_kernel.tolist(),
        by_flow.tolist(),
        [float(np.linalg.norm(state, axis=-1).mean()) for state in reading.states],
        reading.sizes,
        float(np.abs(measured - by_kernel).max()),
        float(np.abs(measured - by_flow).max()),
    )


def _push(row: Field, reading: NetworkReading, index: int) -> Push:
    """The row's stage, with a norm on the stream exactly where this branch of the network has one."""
    stage = row.last
    assert isinstance(stage, Stage)
    stage = dataclasses.replace(stage, stream="unit" if reading.post[index] else "free")
    after = reading.states[(index + 1) // reading.every]
    radius = float(np.sqrt(np.mean(np.sum(after**2, -1))))
    keep, size = reading.keeps[index], reading.sizes[index]
    return Push(reading.kinds[index], stage, size, keep, radius, reading.spreads[index])


def _flow(start: np.ndarray, pushes: list[Push], causal: bool) -> list[float]:
    """The paper's flow: attention only and uniform, one unit of time a branch, each push of the measured size."""
    stages: list[tuple[float, Stage]] = []
    size = float(np.sqrt(np.diag(start).mean()))
    for i, push in enumerate(pushes):
        gain = push.size if push.kind != "ffn" else 1e-12  # the paper has no FFN: nothing moves meanwhile
        if push.stage.stream == "unit":
            gain, size = gain / (push.keep * size), push.radius
        stages.append((float(i), Stage(push.stage.stream, "unit", Gain(gain), push.stage.values)))
    system = GramSystem([Field("measured", "", tuple(stages))], len(start), 0.0, causal=causal)
    radius = np.sqrt(np.diag(start))
    gaps = 1.0 - start / np.outer(radius, radius)
    np.fill_diagonal(gaps, 0.0)
    # A stream that is put back on a sphere has that sphere's radius when it is left to grow (Mix-LN).
    radius = np.full_like(radius, pushes[0].radius) if pushes[0].stage.stream == "unit" else radius
    trace = integrate(
        system.rhs_from,
        np.concatenate([np.maximum(gaps, 0.0).ravel(), radius]),
        times=np.arange(len(pushes) + 1.0),
        observe=lambda t, y: 1.0 - float(system.gap(y)[0]),
        breaks=[left for left, _ in stages[1:]],
        tolerance=Tolerance(1e-6, 1e-9, 100_000),
    )
    return list(trace.samples)


def random_tokens(vocabulary: int, *, batch: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (batch, length), generator=generator)
