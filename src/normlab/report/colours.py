"""One palette. A scheme has the same colour on every page; relatives have neighbouring hues.

A leaf knows no schemes, so the table is kept by name here, and a test holds it against the registry. A scheme that is
not in it (somebody's own) gets a colour that its name alone decides.
"""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterable

# Okabe and Ito's palette: told apart by colour-blind readers, on light and dark paper. For what is not a scheme.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#F0E442")
THEORY = "#888888"  # what is predicted, beside what was measured
BAD = "#D55E00"
MUTED = "#777777"
# How something fares, from well to broken; told apart by lightness too.
FARES = {"fine": "#8FBFA8", "note": "#56B4E9", "warn": "#E69F00", "bad": "#C8401B"}

SCHEME_COLOURS = {
    # placement: the norm before the branch is blue, after the sum red, on both sides green; gates are earth
    "pre_norm": "#0072B2",
    "ln_scaling": "#56B4E9",
    "sqrt_scaling": "#1F2F96",
    "gpas": "#8FA8D6",
    "post_norm": "#D55E00",
    "mix_norm": "#E69F00",
    "deep_norm": "#A6341B",
    "keel": "#F0807A",
    "admin": "#7A3E12",
    "peri_norm": "#009E73",
    "peri_init_norm": "#6CCB9F",
    "res_norm": "#7A9A01",
    "sub_norm": "#B5CF6B",
    "hybrid_norm": "#1F6F4A",
    "rezero": "#B58B4C",
    "layer_scale": "#D9BF77",
    "residual_scaling": "#CF820D",
    "no_norm": "#5B6066",
    # sphere: magenta
    "ngpt": "#E0219A",
    # two-stream: cyan
    "resi_dual": "#17BECF",
    "siamese_norm": "#0B7C8A",
    "b2t": "#7FD1DC",
    # multi-stream: violet
    "hyper_connections": "#9B7FD1",
    "mhc": "#5E3C99",
    "independent_hc": "#471E70",
    "gated_residual": "#BAB0E2",
    # skips: what joins the stream a second time
    "lambda_skip": "#55A7B2",
    "laurel": "#78D04E",
    # depth-sources: rose
    "block_attn_res": "#CC79A7",
    "attn_res": "#9E1F63",
    "dense_former": "#F2A9C4",
    "mudd": "#C4155F",
    "delta_attn_res": "#BF5F7C",
}


def scheme_colour(label: str) -> str:
    """By the scheme's name; options in brackets and words behind the name do not change it."""
    name = label.split("(")[0].split()[0] if label.strip() else ""
    known = SCHEME_COLOURS.get(name.lower().replace("-", "_"))
    if known is not None:
        return known
    hue = zlib.crc32(name.encode()) / 2**32
    return _hex(*colorsys.hls_to_rgb(hue, 0.48, 0.55))


def scheme_colours(labels: Iterable[str]) -> dict[str, str]:
    """For one picture: variants of one scheme are shades of its colour, the first of them the colour itself."""
    found: dict[str, str] = {}
    seen: dict[str, int] = {}
    for label in labels:
        if label not in found:
            base = scheme_colour(label)
            found[label] = shade(base, seen.get(base, 0))
            seen[base] = seen.get(base, 0) + 1
    return found


def shade(colour: str, step: int) -> str:
    """0 the colour, 1 lighter, 2 darker, 3 lighter still, and so on."""
    if step == 0:
        return colour
    toward = 1.0 if step % 2 else 0.0
    weight = 1 - 0.62 ** ((step + 1) // 2)
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return _hex(*(c + (toward - c) * weight for c in channels))


def pick(colour: int | str) -> str:
    """A colour by its place in the palette, or itself."""
    return PALETTE[colour % len(PALETTE)] if isinstance(colour, int) else colour


def _hex(*channels: float) -> str:
    return "#" + "".join(f"{round(255 * c):02X}" for c in channels)
