"""Where the norm goes: a tutorial's equations, its gradient figure, and what current models do."""

from __future__ import annotations

from normlab.experiments.claims.claim import Claim, Correction
from normlab.experiments.claims.conditions import LongEnough, WhereLearned
from normlab.experiments.claims.criteria import Construction, Difference, Every, Inside

TUTORIAL = "a tutorial on norm placement after Xiong et al. 2020, arXiv 2002.04745"
WANG = "Wang et al. 2019, arXiv 1906.01787, equations 5 and 6"
TESTS = "tests/experiments/claims/test_identities.py"
LOSS = "held-out loss"
RATIO = "W1 gradient, first layer over last"

CLAIMS = (
    Claim(
        "004-01",
        "The equations of Post-Norm and Pre-Norm, with a final norm for the latter, are those of the library layers.",
        TUTORIAL,
        Construction("difference from torch.nn's encoder layers", 1e-5, f"{TESTS}::test_both_placements_are_torchs"),
    ),
    Claim(
        "004-02",
        "BERT is Post-Norm, GPT-2 and Llama are Pre-Norm, and OPT-350M is Post-Norm.",
        TUTORIAL,
        Inside("models whose placement is read as stated", 4, 4),
        look="normlab diagnose MODEL",
        note="Small models of the shipped classes: BERT, GPT-2, Llama, and OPT with do_layer_norm_before off. Current "
        "language models in general are not all Pre-Norm: see 004-10.",
    ),
    Claim(
        "004-03",
        "Post-Norm attenuates the gradient of W1 towards the first layers; Pre-Norm does not.",
        TUTORIAL,
        Every(
            (
                Inside(RATIO, high=0.5, arm="post_norm, encoder-decoder 6-6"),
                Inside(RATIO, low=0.5, arm="pre_norm, encoder-decoder 6-6"),
            )
        ),
        evidence="gradients-by-matrix",
        note="The figure is W1 of the decoder of an encoder-decoder with 6 and 6 layers.",
    ),
    Claim(
        "004-04",
        "Post-Norm's training has gradient spikes.",
        TUTORIAL,
        Difference("spikes in a run", "post_norm, 12 layers", "pre_norm, 12 layers", 1, 3.0),
        evidence="spikes",
    ),
    Claim(
        "004-05",
        "With Pre-Norm the warm-up can be removed; with Post-Norm it cannot.",
        TUTORIAL,
        Every(
            (
                Difference("best loss", "pre_norm, no warm-up", "pre_norm, warm-up", -1, 0.1, margin=-0.1),
                Difference("best loss", "post_norm, no warm-up", "post_norm, warm-up", 1, 0.2, margin=0.1),
            )
        ),
        evidence="warmup-map",
        limit="Post-Norm's half is 001-05: without warm-up its best rate is the lowest tried in two of three random seeds",
        note="The numbers of 001-05 and 001-11, in a smaller family of tests: there Pre-Norm's half is undecided (p .057).",
    ),
    Claim(
        "004-06",
        "Pre-Norm allows larger learning rates in large networks.",
        TUTORIAL,
        WhereLearned(
            LongEnough(
                Difference(
                    "highest rate that learns, 24 layers",
                    "pre_norm",
                    "post_norm",
                    1,
                    1.4,
                    ratio=True,
                    margin=0.69,
                    grid=1.39,
                    null="null-highest-rate-that-learns",
                ),
                "steps",
                1000,
                0.6,
            ),
            (Inside("learns at some rate", low=0.5, arm="post_norm", at=24),),
        ),
        evidence="rates-by-depth",
        limit="at 24 layers Post-Norm learned at no rate that was tried, and its lowest one stands in",
        note="Where Post-Norm learns at no rate its lowest one stands in: a lower bound. TOUCHED AFTER NUMBERS WERE SEEN "
        "(2026-11-18): 600 steps had no number, 1,000 have this bound in every seed; what has learned nothing decides "
        "nothing, so that Post-Norm must learn at some rate was added.",
    ),
    Claim(
        "004-07",
        "Back-propagation through Post-Norm is a product over layers.",
        WANG,
        Construction(
            "distance of the whole Jacobian from the product", 1e-12, f"{TESTS}::test_jacobians_take_both_forms"
        ),
        evidence="jacobian-forms",
    ),
    Claim(
        "004-08",
        "Back-propagation through Pre-Norm is a sum over layers.",
        WANG,
        Construction("distance of the whole Jacobian from the sum", 1e-12, f"{TESTS}::test_jacobians_take_both_forms"),
        evidence="jacobian-forms",
    ),
    Claim(
        "004-09",
        "A second norm on the branch output, outside the stream, is a good idea.",
        TUTORIAL,
        LongEnough(Difference(LOSS, "peri_norm", "pre_norm", -1, 0.03, at=1.0), "tokens per parameter", 10, 0.3),
        evidence="ladder",
        note="With the embedding scaled as Gemma's and Grok's authors scale it, which Pre-Norm's is not. A control, Pre-"
        "Norm with a norm behind the embedding, left the tied head and the matrices at their size, and could not see "
        "the difference in starts.",
        corrected=Correction(
            printed="confirmed, -0.121 (-0.155 to -0.0872, n = 5)",
            why="Initialisation, not placement. At width 32 Pre-Norm's matrices start at GPT-2's absolute 0.02, a ninth of "
            "d^-1/2, and its embedding at 0.02; Peri-Norm's embedding at 0.96, and its output matrices 3.5 times larger.",
            stands="With d^-1/2 and Peri-Norm's embedding, at an untuned rate, Pre-Norm gains 0.131 (0.101 to 0.160, n = 5), "
            "and peri_norm as printed ends 0.012 (-0.003 to 0.026, n = 5) above it. At one start for both peri_norm minus "
            "pre_norm is -0.004 and -0.003 (n = 2; own measurements of 2026-11-19, not stored). No effect of the "
            "placement is visible in models of 84,000 parameters.",
            decides="Both schemes with one start that follows the width, rates inside the grid, at 10 M parameters or more, "
            "where published differences begin.",
        ),
    ),
    Claim(
        "004-10",
        "A norm on the branch output alone, as in OLMo 2, is enough.",
        TUTORIAL,
        LongEnough(
            Difference(LOSS, "res_norm", "pre_norm", -1, 0.05, margin=-0.05, at=1.0), "tokens per parameter", 10, 0.15
        ),
        evidence="res-norm",
        limit="res_norm's best rate is the last one tried (0.0333), and its matrices start 3.5 times larger than pre_norm's",
        note="With the q-k norm of its block: not worse than Pre-Norm by more than 0.05 nats.",
    ),
)
