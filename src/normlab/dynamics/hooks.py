"""What the bridge needs of a real network: the stream at every read, and the size of what each branch adds."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from normlab.errors import InputError
from normlab.model import Transformer
from normlab.model.attention import Pass

Kind = Literal["attention", "ffn", "block"]
LAYER_NORMS = re.compile(r"LayerNorm$")


@dataclass(frozen=True)
class Reading:
    """states: (batch, tokens, d) at each read and at the end, centred where the model's norms centre.

    sizes: root mean square norm of what each branch adds; keeps: the weight of the stream beside it; post: whether the
    stream is normalised after the addition; spreads: standard deviation of the attention logits (0 for an FFN).
    """

    states: list[np.ndarray]
    kinds: list[Kind]
    sizes: list[float]
    keeps: list[float]
    post: list[bool]
    spreads: list[float]


def _array(x: Tensor, centre: bool) -> np.ndarray:
    value = x.detach().double().cpu().numpy()
    return value - value.mean(-1, keepdims=True) if centre else value


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum(x * x, -1))))


@torch.no_grad()
def read_transformer(model: Transformer, tokens: Tensor, name: str) -> Reading:
    """Our own model: its scheme's tape has the reads, hooks on the branches have what they take in and put out."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def keep(_: nn.Module, taken: tuple[Any, ...], out: Tensor) -> None:
        inputs.append(taken[0])
        outputs.append(out)

    hooks = [b.register_forward_hook(keep) for b in model.branches]
    was = model.training
    model.eval()
    try:
        with model.scheme.taped() as tape:
            model.features(tokens)
    finally:
        model.train(was)
        for hook in hooks:
            hook.remove()
    centre = model.config.norm == "layernorm"
    states = [_array(h, centre) for h in tape.reads]
    scheme: Any = model.scheme
    sizes, keeps, post, spreads = [], [], [], []
    for i, (site, branch) in enumerate(zip(model.sites, model.branches, strict=True)):
        spreads.append(_spread(branch, inputs[i]) if site.kind == "attention" else 0.0)
        if name == "ngpt":  # h <- N((1 - alpha) h + alpha N(F(h)))
            sizes.append(float(scheme.step_size(site).mean()))
            keeps.append(1.0 - sizes[-1])
            post.append(True)
            continue
        sizes.append(_rms(_array(scheme.b(scheme.res[i](outputs[i]), site), centre)))
        keeps.append(1.0 if scheme.a.identity else scheme.a.numbers[i])
        post.append(not isinstance(scheme.out[i], nn.Identity))
    return Reading(states, [site.kind for site in model.sites], sizes, keeps, post, spreads)


def _spread(attention: Any, x: Tensor) -> float:
    """Root mean square of the logits between different tokens."""
    heads, kv, d = attention.heads, attention.kv_heads, attention.head_dim
    qk = attention.qkv(x)[..., : (heads + kv) * d].unflatten(-1, (heads + kv, d))
    q, k = attention._queries_and_keys(qk, Pass())
    k = k.repeat_interleave(heads // kv, dim=2)
    logits = torch.einsum("bihd,bjhd->bhij", q, k) * attention.scale
    apart = ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    return float(logits[..., apart].square().mean().sqrt())


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks: the longest ModuleList whose members are of one class."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) and len({type(x) for x in m}) == 1]
    if not lists:
        raise InputError(f"{type(model).__name__} has no list of equal blocks (nn.ModuleList) that could be its layers")
    return max((list(blocks) for blocks in lists), key=len)


@torch.no_grad()
def read_blocks(model: nn.Module, tokens: Tensor, name: str, spread: float = 0.0) -> Reading:
    """Any model made of blocks, for example from Hugging Face: the stream before each block and after the last.

    A block is read as attention followed by an FFN of equal size, as what it adds is known only as a whole.
    """
    blocks = find_blocks(model)
    before: list[Tensor] = []
    after: list[Tensor] = []

    def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before.append(next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()))

    def keep_output(_: nn.Module, __: Any, out: Any) -> None:
        after.append(out[0] if isinstance(out, (tuple, list)) else out)

    hooks = [b.register_forward_pre_hook(keep_input, with_kwargs=True) for b in blocks]
    hooks += [b.register_forward_hook(keep_output) for b in blocks]
    was = model.training
    model.eval()
    try:
        model(tokens)
    finally:
        model.train(was)
        for hook in hooks:
            hook.remove()
    for i in range(1, len(before)):
        if not torch.equal(before[i], after[i - 1]):
            raise InputError(
                f"block {i} does not read what block {i - 1} wrote, so its blocks are not one residual stream in order"
            )
    centre = any(LAYER_NORMS.search(type(m).__name__) for m in blocks[0].modules())
    states = [_array(x, centre) for x in (*before, after[-1])]
    sizes = [_added(a, b, name) for a, b in itertools.pairwise(states)]
    count = len(blocks)
    return Reading(states, ["block"] * count, sizes, [1.0] * count, [name == "post_norm"] * count, [spread] * count)


def _added(before: np.ndarray, after: np.ndarray, name: str) -> float:
    if name == "post_norm":  # only directions remain: |y| from the angle by which an orthogonal addition turns x
        turned = np.sum(before * after, -1) / np.linalg.norm(before, axis=-1) / np.linalg.norm(after, axis=-1)
        return _rms(before) * float(np.sqrt(np.mean(1.0 / np.clip(turned, 0.05, 1.0) ** 2 - 1.0)))
    return _rms(after - before)
