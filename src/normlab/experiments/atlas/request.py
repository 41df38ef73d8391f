"""What is asked of an atlas. No torch here: `normlab atlas --help` answers at once."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from normlab.experiments.request import Request, option
from normlab.experiments.shapes import known_schemes

FIVE = ("pre_norm", "post_norm", "peri_norm", "ln_scaling", "block_attn_res")
STARTS = {"fair": "the fair start", "gpt2": "GPT-2's start", "unit": "branches of unit size"}


class AtlasRequest(Request):
    """Schemes in one shape, looked at once before any training."""

    what: ClassVar[str] = "atlas"
    kind: ClassVar[str] = "atlas"

    schemes: tuple[str, ...] = option(
        FIVE, "Names with commas, options in brackets: block_attn_res(blocks=4); a family; or all."
    )
    depth: int = option(24, "Layers.", ge=1)
    dim: int = option(128, "Width.", ge=1)
    init: Literal["fair", "gpt2", "unit"] = option(
        "fair",
        "fair: in proportion to a matrix's inputs, as in training; gpt2: GPT-2's, 0.02 at every width; unit: branches of "
        "unit size (Xiong et al.).",
    )
    seed: int = option(0, "Seed of every random draw.", ge=0, lt=2**63)
    batch: int = Field(default=4, ge=1)
    length: int = Field(default=64, ge=1)
    rounds: int = Field(default=7, ge=1, description="of the timing")

    @field_validator("schemes")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_schemes(names)

    @field_validator("init", mode="before")
    @classmethod
    def _older_word(cls, name: object) -> object:
        return "unit" if name == "paper" else name

    @property
    def heads(self) -> int:
        return max(1, self.dim // 32)

    @property
    def shape(self) -> str:
        """In a sentence."""
        sample = f"{self.batch} x {self.length} bytes of the shipped plays"
        return f"{self.depth} layers, width {self.dim}, {STARTS[self.init]}, {sample}, random seed {self.seed}"
