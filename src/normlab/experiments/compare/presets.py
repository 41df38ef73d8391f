"""Named comparisons: rows of options. What the command line gives beside `--preset` wins."""

from __future__ import annotations

from normlab.errors import ConfigError, canonical, unknown

Options = dict[str, object]

# DenseFormer is the static-routing control: it may weigh depth too, but with weights that no token changes.
LADDER_SCHEMES = ("pre_norm", "block_attn_res", "siamese_norm", "peri_norm", "post_norm", "dense_former")
LADDER: Options = {
    "start": "old", "recipe": "authors",  # as the stored results were made
    "schemes": LADDER_SCHEMES, "baseline": "pre_norm", "seeds": 5, "tune_seeds": 2, "tune_share": 0.25,
    "lrs": (1e-3, 3e-3, 1e-2),
}  # fmt: skip

# OLMo 2's placement is a claim of its own, on the same runs.
SMALL_SCHEMES = (*LADDER_SCHEMES, "res_norm")
# Placements alone, and Attention Residuals around them: a scheme and its pair have the same recipe.
INNER_SCHEMES = (
    "pre_norm", "block_attn_res", "peri_norm", "block_attn_res(inner=peri_norm)", "res_norm",
    "block_attn_res(inner=res_norm)",
)  # fmt: skip

# Tokens are ten for each parameter of Pre-Norm: 83,872 (small), 159,520 (deep), 601,664 and 1,186,880 of them.
PRESETS: dict[str, Options] = {
    # Two rates, and one more on the side of the better: three for each scheme, none of them far off.
    "ladder-small": {**LADDER, "depths": (6,), "dim": 32, "tokens": 840_000, "schemes": SMALL_SCHEMES,
                     "lrs": (3e-3, 1e-2)},
    # A first look: 2.5 tokens for each parameter, rates chosen on one seed. Too short to decide a claim.
    "ladder-quarter": {**LADDER, "depths": (6,), "dim": 32, "tokens": 210_000, "schemes": SMALL_SCHEMES,
                       "tune_seeds": 1},
    # `ladder-small` with three rates for all, so that no best one is at an end that is known to be one.
    "ladder-inner": {**LADDER, "depths": (6,), "dim": 32, "tokens": 840_000, "schemes": INNER_SCHEMES,
                     "lrs": (3e-3, 1e-2, 3.3e-2)},
    # Twice the depth of the small one, in half an hour of one core: what of its order stays?
    "ladder-deep": {**LADDER, "depths": (12,), "dim": 32, "tokens": 1_600_000, "seeds": 3, "lrs": (3e-3, 1e-2),
                    "schemes": ("pre_norm", "block_attn_res", "peri_norm")},
    "ladder": {**LADDER, "depths": (12,), "dim": 64, "tokens": 6_020_000},
    "ladder-24": {**LADDER, "depths": (24,), "dim": 64, "tokens": 11_870_000, "seeds": 3,
                  "schemes": LADDER_SCHEMES[:3]},
}  # fmt: skip


def preset(name: str) -> Options:
    known = {canonical(key): row for key, row in PRESETS.items()}
    if canonical(name) not in known:
        raise ConfigError(unknown("preset", name, PRESETS))
    return known[canonical(name)]
