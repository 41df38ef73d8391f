"""Where tokens start: equiangular, uniform on the sphere, inside a small cone, or the words of a text."""

from __future__ import annotations

import re

import numpy as np

from normlab.errors import ConfigError, InputError

# Our own words, for `init = "text"` without a text. Repeated words start at the same point, as in an embedding table.
TEXT = """
A token enters the first layer as a point on a sphere, and every layer moves it a little towards the tokens that it
attends to. If the layers go on for long enough, the points gather, and in the end the tokens say the same thing. How
fast they gather is decided by the norm. A norm after the sum keeps the length of each token fixed, so that each layer
turns the token by about the same angle, and the points gather fast. A norm before the branch lets the length of the
token grow with depth, so that a layer deep in the stack turns a long token by a small angle, and the points gather
slowly. A norm on both sides of the branch makes the first layers turn the token far, because a small push is brought
to full length, and the last layers turn it little, because the token has grown by then. None of this needs training:
it is there in the layer before the first step, and the weights have to live with it.
"""


def unit(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return result


def symmetric(n: int, d: int, seed: int, *, gamma: float = 0.0) -> np.ndarray:
    """n directions whose pairwise cosine is gamma exactly (a random rotation of the standard ones)."""
    need = n if gamma != -1.0 / (n - 1) else n - 1
    if d < need:
        raise ConfigError(
            f"{n} tokens at one common angle need d >= {need}, but d = {d}; raise d, lower n, or use init='uniform'"
        )
    gram = np.full((n, n), gamma) + (1.0 - gamma) * np.eye(n)
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, n)))[0]
    return unit(np.linalg.cholesky(gram) @ basis.T)


def uniform(n: int, d: int, seed: int) -> np.ndarray:
    return unit(np.random.default_rng(seed).standard_normal((n, d)))


def cone(n: int, d: int, seed: int, *, angle: float = 0.1) -> np.ndarray:
    """Directions within `angle` radians of a random axis."""
    if not 0 < angle < np.pi / 2:
        raise ConfigError(f"the cone's angle should be between 0 and pi/2 radians, but is {angle:g}")
    rng = np.random.default_rng(seed)
    axis = unit(rng.standard_normal(d))
    side = rng.standard_normal((n, d))
    side = unit(side - (side @ axis)[:, None] * axis)
    tilt = angle * np.sqrt(rng.random((n, 1)))  # even over the cap's disc
    result: np.ndarray = np.cos(tilt) * axis + np.sin(tilt) * side
    return result


def text(n: int, d: int, seed: int, *, source: str | None = None) -> np.ndarray:
    """The first n words of a text; each distinct word has one random direction, as an untrained embedding gives it."""
    words = re.findall(r"\w+", (source or TEXT).lower())
    if len(words) < n:
        whose = "the built-in text" if source is None else "the text"
        raise InputError(f"{whose} has {len(words)} words but n = {n} were asked for; lower n or give a longer text")
    distinct = {word: i for i, word in enumerate(dict.fromkeys(words[:n]))}
    table = uniform(len(distinct), d, seed)
    return table[[distinct[word] for word in words[:n]]]


INITS = ("symmetric", "uniform", "cone", "text")
