"""The experiments of "Post-Norm can Resharpen Attention" and its open ends, each by name: rows of options.

A row has a question and parts; a part is what it sets of a `LengthgenRequest`. What the command line gives beside
`--experiment` wins, so `--experiment text --steps 20000` is the same with more steps. Sizes are for two cores and minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from normlab.errors import ConfigError, canonical, unknown

Options = dict[str, object]


@dataclass(frozen=True)
class Preset:
    """A named experiment."""

    question: str
    parts: dict[str, Options]
    shared: Options = field(default_factory=dict)

    def options(self, part: str) -> Options:
        """With the start that the stored results have."""
        return {"start": "old", **self.shared, **self.parts[part]}


TWO_LAYER: Options = {
    "start": "old",
    "preset": "two_layer",
    "dims": (16,),
    "seeds": 8,
    "batch": 8,
    "lrs": (1e-2,),
    "steps": 600,
}
SMALL_MINIMAL: Options = {
    "start": "old",
    "preset": "minimal",
    "train_length": 8,
    "seeds": 8,
    "batch": 16,
    "steps": 3000,
    "lrs": (1e-2,),
}
THREE = ("pre_norm", "post_norm", "peri_norm")
NOTHING_BEHIND = "pre_norm(final_norm=False)"
"""The control: no norm stands behind attention. Plain `pre_norm` has its final one there."""
SEVEN_ARMS = (NOTHING_BEHIND, "post_norm", "peri_norm", "res_norm(final_norm=False)", "pre_norm", "peri_init_norm",
              "no_norm")  # fmt: skip
MINIMAL_16: Options = {"start": "old", "preset": "minimal", "train_length": 8, "batch": 64, "schemes": SEVEN_ARMS,
                       "task": "set-complement(vocab=16)", "test_lengths": (1, 2, 4, 8, 12, 15)}  # fmt: skip
FOUR_TASKS: dict[str, Options] = {
    "set-complement": {"task": "set-complement(vocab=12, targets=exact)", "train_length": 6,
                       "test_lengths": (3, 6, 9, 11), "batch": 16},
    "max-retrieval": {"task": "max-retrieval", "train_length": 16, "test_lengths": (16, 64, 256)},
    "dyck": {"task": "dyck(pairs=2, depth=3)", "train_length": 16, "test_lengths": (16, 32, 64)},
    "tomita": {"task": "tomita(number=3)", "train_length": 16, "test_lengths": (16, 32, 64)},
}  # fmt: skip

COMPLEMENT, RETRIEVAL, DYCK, _ = FOUR_TASKS.values()

EXPERIMENTS: dict[str, Preset] = {
    # -- the three first experiments
    "minimal-by-length": Preset(
        "Does a norm behind attention help the minimal model beyond its training length?",
        {"set-complement": {"task": "set-complement(vocab=16)", "test_lengths": (1, 2, 4, 8, 12, 15)}},
        {"preset": "minimal", "train_length": 8, "batch": 64, "steps": 25_000},
    ),
    "averages": Preset(
        "Raw, EMA or BEMA weights, where many tokens are legal and targets are noisy?",
        {"set-complement": {"task": "set-complement(vocab=32)", "test_lengths": (1, 4, 8, 16, 31)}},
        {"preset": "minimal", "train_length": 8, "batch": 64, "steps": 6000, "schemes": THREE},
    ),
    "dyck-beyond-depth": Preset(
        "Does peri-norm carry two layers beyond the depth and the length that they were trained on?",
        {"deeper": {"test_task": "dyck(pairs=2, depth=5)"}, "longer": {}},
        {**TWO_LAYER, **DYCK, "schemes": THREE},
    ),
    "norm-behind-attention": Preset(
        "Is it a norm behind attention that helps beyond the training length? Arms with one, beside two without any.",
        {"set-complement": {}},
        {**MINIMAL_16, "steps": 6000},
    ),
    "million-steps": Preset(
        "The same, as long as the paper trains: 1,000,000 steps, scored on the way. Hours.",
        {
            "vocab-16": {"steps": 1_000_000, "evaluate_at": (10_000, 30_000, 100_000, 300_000)},
            "vocab-32": {"steps": 200_000, "evaluate_at": (10_000, 30_000, 100_000),
                         "task": "set-complement(vocab=32)", "test_lengths": (1, 4, 8, 16, 24, 31)},
        },
        MINIMAL_16,
    ),
    # -- the three next checks
    "non-uniform-attention": Preset(
        "Tokens repeat, so uniform attention is not balanced: do models find another pattern, and does a norm still help?",
        {"repeated": {"task": "set-complement(vocab=16, replacement=true, targets=exact)",
                      "test_lengths": (4, 8, 16, 32)}},
        SMALL_MINIMAL,
    ),
    "widths": Preset(
        "How do the width d and the width of the values d_v matter, below and above v - 1?",
        {
            "d-minimal": {**SMALL_MINIMAL, **COMPLEMENT, "dims": (6, 9, 11, 16), "steps": 2000},
            "dv-minimal": {**SMALL_MINIMAL, **COMPLEMENT, "dims": (11,), "head_dims": (6, 9, 11, 16),
                           "steps": 2000},
            **{f"d-{name}": {**part, "dims": (8, 16)} for name, part in FOUR_TASKS.items()},
            **{f"dv-{name}": {**part, "head_dims": (2, 8)} for name, part in FOUR_TASKS.items()},
        },
        {**TWO_LAYER, "schemes": ("pre_norm", "post_norm"), "positions": ("nope",)},
    ),
    "stability": Preset(
        "Which scheme trains calmly as the learning rate rises: gradient norms, the loss's spread, early stops?",
        {"dyck": {}},
        {**TWO_LAYER, **DYCK, "steps": 250, "lrs": (1e-2, 1e-1)},
    ),
    # -- the three open questions
    "deep-post-norm": Preset(
        "Does post-norm still train, and generalize, with more than 12 layers?",
        {"16-layers": {"depth": 16}},
        {**TWO_LAYER, **DYCK, "schemes": ("pre_norm", "post_norm", "peri_norm", "deep_norm"), "steps": 200,
         "lrs": (3e-3,), "test_count": 64},
    ),
    "text": Preset(
        "Natural text: does the loss stay low beyond the training length?",
        {"bytes": {"task": "text", "train_length": 16, "test_lengths": (16, 32, 64), "test_count": 256}},
        {**TWO_LAYER, "schemes": ("pre_norm", "post_norm"), "positions": ("nope", "rope"), "steps": 600},
    ),
    "precision": Preset(
        "The precision bound: does a norm on the attention output keep the gap from falling with length?",
        {"vocab-16": {"task": "set-complement(vocab=16, targets=exact)", "test_lengths": (1, 2, 4, 8, 12, 15)}},
        {**SMALL_MINIMAL, "schemes": ("pre_norm", "res_norm", "peri_norm")},
    ),
    # -- the direction on all four tasks, and the rivals
    "four-tasks": Preset(
        "Post-norm against pre-norm on the four tasks, with and without rotary positions",
        FOUR_TASKS,
        {**TWO_LAYER, "schemes": ("pre_norm", "post_norm"), "positions": ("nope", "rope")},
    ),
    "rival-fixes": Preset(
        "SSMax, adaptive temperature and a norm on each head, beside a norm behind attention",
        {"max-retrieval": RETRIEVAL},
        {**TWO_LAYER, "schemes": ("pre_norm", "post_norm"), "fixes": ("none", "ssmax", "adaptive", "head_norm")},
    ),
}  # fmt: skip


def preset(name: str) -> Preset:
    known = {canonical(key): row for key, row in EXPERIMENTS.items()}
    if canonical(name) not in known:
        raise ConfigError(unknown("experiment", name, EXPERIMENTS))
    return known[canonical(name)]


def listing() -> str:
    return "; ".join(EXPERIMENTS)
