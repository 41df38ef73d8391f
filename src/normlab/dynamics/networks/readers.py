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
from normlab.observe.portrait import walk

Kind = Literal["attention", "ffn"]
ATTENTION = re.compile(r"attn|attention", re.I)
FFN = re.compile(r"mlp|ffn|feed_?forward|intermediate", re.I)
LAYER_NORMS = re.compile(r"LayerNorm$")


@dataclass(frozen=True)
class NetworkReading:
    """states: (batch, tokens, d) at each read and at the end, centred where the model's norms centre.

    sizes: root mean square norm of what each branch adds; keeps: the weight of the stream beside it; post: whether the
    stream is normalised after the addition; spreads: standard deviation of the attention logits (0 for an FFN).
    Two branches may share one state (a foreign model's block): then `every` is 2. activation: of the FFN, and the
    standard deviation of what enters it.
    """

    states: list[np.ndarray]
    kinds: list[Kind]
    sizes: list[float]
    keeps: list[float]
    post: list[bool]
    spreads: list[float]
    every: int = 1
    activation: tuple[str, float] = ("relu", 1.0)


def _array(x: Tensor, centre: bool) -> np.ndarray:
    value = x.detach().double().cpu().numpy()
    return value - value.mean(-1, keepdims=True) if centre else value


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum(x * x, -1))))


@torch.no_grad()
def read_transformer(model: Transformer, tokens: Tensor, name: str) -> NetworkReading:
    """Our own model: what every branch reads, takes in and puts out."""
    was = model.training
    model.eval()
    try:
        seen = walk(model, lambda: model.features(tokens))
    finally:
        model.train(was)
    centre = model.config.norm == "layernorm"
    states = [_array(h, centre) for h in seen.reads]
    scheme: Any = model.scheme
    sizes, keeps, post, spreads = [], [], [], []
    for i, (site, branch) in enumerate(zip(model.sites, model.branches, strict=True)):
        spreads.append(_spread(branch, seen.inputs[i]) if site.kind == "attention" else 0.0)
        if name == "ngpt":  # h <- N((1 - alpha) h + alpha N(F(h)))
            sizes.append(float(scheme.step_size(site).mean()))
            keeps.append(1.0 - sizes[-1])
            post.append(True)
            continue
        sizes.append(_rms(_array(scheme.b(scheme.res[i](seen.outputs[i]), site), centre)))
        keeps.append(1.0 if scheme.a.identity else scheme.a.numbers[i])
        post.append(not isinstance(scheme.out[i], nn.Identity))
    kinds = [site.kind for site in model.sites]
    return NetworkReading(states, kinds, sizes, keeps, post, spreads, 1, _own_activation(model))


def _own_activation(model: Transformer) -> tuple[str, float]:
    if model.config.ffn == "none":
        return "relu", 1.0
    ffn: Any = next(b for b, site in zip(model.branches, model.sites, strict=True) if site.kind == "ffn")
    return model.config.ffn, round(float(ffn.up.weight.std()) * model.config.dim**0.5, 3)


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
def read_blocks(model: nn.Module, tokens: Tensor, name: str, spread: float = 0.0) -> NetworkReading:
    """Any model made of blocks, for example from Hugging Face: the stream before each block and after the last.

    What a block adds is split between attention and FFN as the outputs of its children of those names are sized
    (evenly, where a norm follows them or none is found).
    """
    blocks = find_blocks(model)
    tape = _BlockTape(blocks)
    was = model.training
    model.eval()
    try:
        model(tokens)
    finally:
        model.train(was)
        tape.remove()
    before, after = tape.before, tape.after
    if len(before) != len(blocks) or any(not torch.equal(b, a) for b, a in zip(before[1:], after, strict=False)):
        raise InputError(
            f"the {len(blocks)} blocks of {type(model).__name__} do not read one another's output in order, so they are "
            "not one residual stream"
        )
    centre = any(LAYER_NORMS.search(type(m).__name__) for m in blocks[0].modules())
    states = [_array(x, centre) for x in (*before, after[-1])]
    sizes: list[float] = []
    for i, (a, b) in enumerate(itertools.pairwise(states)):
        added, share = _added(a, b, name), tape.share(i) if name == "pre_norm" else 0.5
        sizes += [added * share**0.5, added * (1 - share) ** 0.5]
    kinds: list[Kind] = ["attention", "ffn"] * len(blocks)
    post = [False, name == "post_norm"] * len(blocks)
    spreads = [spread, 0.0] * len(blocks)
    return NetworkReading(
        states, kinds, sizes, [1.0] * len(kinds), post, spreads, 2, _foreign_activation(model, blocks[0])
    )


class _BlockTape:
    """Hooks on blocks and on their attention and FFN children."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []
        self.inner: dict[str, list[float]] = {"attention": [], "ffn": []}
        self.hooks = []
        for block in blocks:
            self.hooks.append(block.register_forward_pre_hook(self._enter, with_kwargs=True))
            self.hooks.append(block.register_forward_hook(lambda _, __, out: self.after.append(_first(out))))
            for kind, pattern in (("attention", ATTENTION), ("ffn", FFN)):
                child = next((m for n, m in block.named_children() if pattern.search(n) and "norm" not in n), None)
                if child is not None:
                    self.hooks.append(child.register_forward_hook(self._size(kind)))

    def _enter(self, _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self.before.append(
            next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point())
        )

    def _size(self, kind: str) -> Any:
        return lambda _, __, out: self.inner[kind].append(float(_first(out).detach().double().square().mean()))

    def share(self, i: int) -> float:
        """The attention's part of what block i adds."""
        a, f = (self.inner[kind][i] if i < len(self.inner[kind]) else 1.0 for kind in ("attention", "ffn"))
        return a / (a + f) if a + f > 0 else 0.5

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


def _first(out: Any) -> Tensor:
    result: Tensor = out[0] if isinstance(out, (tuple, list)) else out
    return result


def _added(before: np.ndarray, after: np.ndarray, name: str) -> float:
    if name == "post_norm":  # only directions remain: |y| from the angle by which an orthogonal addition turns x
        turned = np.sum(before * after, -1) / np.linalg.norm(before, axis=-1) / np.linalg.norm(after, axis=-1)
        return _rms(before) * float(np.sqrt(np.mean(1.0 / np.clip(turned, 0.05, 1.0) ** 2 - 1.0)))
    return _rms(after - before)


def _foreign_activation(model: nn.Module, block: nn.Module) -> tuple[str, float]:
    """From the names in a Hugging Face config; the deviation from the FFN's first matrix."""
    config = getattr(model, "config", None)
    keys = ("hidden_act", "activation_function", "hidden_activation")
    name = next((str(getattr(config, key)) for key in keys if getattr(config, key, None)), "gelu")
    ffn = next((m for n, m in block.named_modules() if FFN.search(n)), block)
    matrix = next((p for p in ffn.parameters() if p.dim() == 2), None)
    wide = getattr(config, "hidden_size", None) or (min(matrix.shape) if matrix is not None else 1)
    std = 1.0 if matrix is None else round(float(matrix.detach().float().std()) * wide**0.5, 3)
    if any("gate" in n for n, _ in ffn.named_modules()):
        return ("swiglu" if "silu" in name or "swish" in name else "geglu"), std
    return ("relu" if name == "relu" else "gelu"), std
