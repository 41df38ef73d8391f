"""Images for models that read pixels: a folder of them, or a small generated sample."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import InputError, require

KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def size_of(model: nn.Module) -> tuple[int, int, int]:
    """(channels, height, width) that a model reads, from its config."""
    config = getattr(model, "config", None)
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return int(getattr(config, "num_channels", 3)), height, width


def scaling(source: str) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel from the model folder's preprocessor_config.json; 0.5 each without one."""
    try:
        values = json.loads((Path(source) / "preprocessor_config.json").read_text(encoding="utf-8"))
        return [float(v) for v in values["image_mean"]], [float(v) for v in values["image_std"]]
    except (OSError, ValueError, KeyError, TypeError):
        return [0.5] * 3, [0.5] * 3


def read_images(folder: Path, shape: tuple[int, int, int], *, count: int, scale: Any) -> Tensor:
    """The first `count` images of a folder by name, resized, [count, channels, height, width]."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {str(folder)!r}; --images wants a folder with {', '.join(KINDS)} files")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in KINDS)[:count]
    if not files:
        raise InputError(f"the folder {str(folder)!r} holds no images ({', '.join(KINDS)})")
    library = require("PIL.Image", extra="images", purpose="reading images")
    channels, height, width = shape
    rows = []
    for path in files:
        try:
            with library.open(path) as image:
                small = image.convert("RGB" if channels == 3 else "L").resize((width, height))
        except (OSError, ValueError) as error:
            raise InputError(f"{str(path)!r} could not be read as an image: {error}") from None
        pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).reshape(height, width, -1)
        rows.append(pixels.permute(2, 0, 1).float() / 255)
    return _scaled(torch.stack(rows), scale)


def sample_images(shape: tuple[int, int, int], *, count: int, seed: int, scale: Any) -> Tensor:
    """Smooth colour fields with a few discs on them: structure at several sizes, but no photographs."""
    channels, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")

    def draw(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator)

    result = torch.zeros(count, channels, height, width)
    for image in result:
        for octave in range(5):  # amplitude ~ 1 / frequency, as in photographs
            for channel in range(channels):
                frequency, angle, phase = 2.0**octave, math.pi * draw(1), 2 * math.pi * draw(1)
                wave = torch.sin(2 * math.pi * frequency * (x * angle.cos() + y * angle.sin()) + phase)
                image[channel] += wave / frequency
        image.sub_(image.amin()).div_((image.amax() - image.amin()).clamp_min(1e-6))
        for _ in range(4):
            centre, radius, colour = draw(2), 0.05 + 0.2 * draw(1), draw(channels)
            inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
            image[:, inside] = colour[:, None]
    return _scaled(result, scale)


def _scaled(pixels: Tensor, scale: tuple[list[float], list[float]]) -> Tensor:
    channels = pixels.shape[1]
    mean, deviation = (torch.tensor((values * channels)[:channels]).view(1, -1, 1, 1) for values in scale)
    return (pixels - mean) / deviation.clamp_min(1e-6)
