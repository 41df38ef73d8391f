"""What kind of branch is it: attention, attention to another sequence, another mixer of tokens, or a feed-forward?

Told by its operations first (a softmax over keys is attention, whatever the module is called), by names where several
kinds of module do the same operations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from normlab.probes.trace.structure.ledger import MATRIX, ModuleCall, Node

SOFTMAX = ("_softmax", "_safe_softmax", "softmax")
FUSED = "scaled_dot_product"
_MIXERS = (
    ("state space", r"mamba|ssm|\bs4|s6"),
    ("linear attention", r"linear_?att|delta|kda|lightning|retention|gla\b|gated_?linear|linearatt"),
    ("recurrence", r"rwkv|lru|recurrent|lstm|gru\b|hawk|griffin"),
    ("convolution", r"conv|hyena"),
    ("Fourier transform", r"fourier|fft"),
)
_SCANS = ("cumsum", "cumprod", "logcumsumexp", "_fft_r2c", "_fft_c2c", "fft_fftn")


def is_attention(nodes: Sequence[Node], calls: Sequence[ModuleCall]) -> bool:
    for node in nodes:
        if FUSED in node.op:
            return True
        if node.op in SOFTMAX:
            used = any(other.op in MATRIX for other in nodes if _follows(other, node))
            if used and (node.value.dim() >= 4 or (node.value.dim() == 3 and _says(calls, "att"))):
                return True
    return False


def _follows(node: Node, softmax: Node) -> bool:
    """Is the softmax an operand, whatever was done to its shape?"""
    for parent in node.parents:
        here, steps = parent, 0
        while here is not softmax and here.parents and steps < 12:
            here, steps = here.parents[0], steps + 1
        if here is softmax:
            return True
    return False


def _says(calls: Sequence[ModuleCall], word: str) -> bool:
    return any(word in f"{call.name} {type(call.module).__name__}".lower() for call in calls)


def mixer_name(core: ModuleCall | None, calls: Sequence[ModuleCall], nodes: Sequence[Node]) -> str:
    """'state space (MambaMixer)', or empty for a feed-forward."""
    own = [core] if core else list(calls)
    slides = any(node.op == "convolution" for node in nodes)  # GPT-2 calls its linear layers Conv1D
    for scope in (own, list(calls)):
        text = " ".join(f"{call.name} {type(call.module).__name__}" for call in scope).lower()
        for name, pattern in _MIXERS:
            if re.search(pattern, text) and (name != "convolution" or slides):
                return f"{name} ({type(own[0].module).__name__})"
    # Experts count their tokens with a sum along integers: that is no scan.
    if any(node.op in _SCANS and (node.value.is_floating_point() or node.value.is_complex()) for node in nodes):
        return f"scan over tokens ({type(own[0].module).__name__})" if own else "scan over tokens"
    return ""


def classify(
    nodes: Sequence[Node], calls: Sequence[ModuleCall], core: ModuleCall | None, foreign: set[Node]
) -> tuple[str, str]:
    """(kind, name of the mixer): of the operations and modules behind what one branch adds."""
    if is_attention(nodes, calls):
        crossed = any(node in foreign for node in nodes)
        return ("cross_attention" if crossed else "attention"), ""
    mixer = mixer_name(core, calls, nodes)
    if mixer:
        return "mixer", mixer
    return "ffn", ""
