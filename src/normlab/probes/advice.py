"""Why each verdict matters and what to try, in words. The rules that find them are in `verdicts`."""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    why: str
    advice: str


TEXTS = {
    "non_finite": Text(
        "every number behind it is NaN: the model cannot be used or judged",
        "go back to the last checkpoint with finite weights; look at the loss scale, the learning rate "
        "and the clipping",
    ),
    "exploding_stream": Text(
        "the growth is exponential, not the square root of depth that random branches give: late layers "
        "see only the last few, and half precision overflows",
        "scale residual projections by 1/sqrt(2 L) at initialisation, or use a scheme that bounds the "
        "stream; see what it costs and gains with: normlab compare --schemes pre_norm,peri_norm",
    ),
    "pre_norm_dilution": Text(
        "the stream grows while branches do not, so each late layer is a small correction: depth is paid "
        "for and hardly used",
        "in a new model LayerNorm scaling, peri-norm or attention residuals; compare them at your depth: "
        "normlab compare --schemes pre_norm,ln_scaling,peri_norm,block_attn_res",
    ),
    "gradient_imbalance": Text(
        "one learning rate cannot fit layers whose gradients differ this much: some hardly learn, or others diverge",
        "late-heavy: pre_norm, deep_norm or a longer warm-up; early-heavy: peri_norm or ln_scaling. "
        "The map of rates and warm-up for each: normlab stability --schemes pre_norm,deep_norm,peri_norm,ln_scaling",
    ),
    "representation_collapse": Text(
        "when all tokens are one vector the layers behind cannot tell them apart; attention averages, and "
        "nothing undoes it",
        "less mixing per layer: pre_norm or peri_norm instead of post_norm, qk_norm, or a smaller initial "
        "output projection",
    ),
    "attention_dispersion": Text(
        "uniform attention averages all tokens: nothing is looked up, and its output shrinks with length. "
        "At initialisation this is how attention starts; in a trained model it is a fault",
        "sharper logits: qk_norm with a learned scale, or a smaller norm gain before attention; the effect on length: "
        "normlab lengthgen --schemes pre_norm,post_norm,peri_norm",
    ),
    "attention_sinks": Text(
        "heads park their weight there when they have nothing to add; common in trained decoders. "
        "Evicting that token from a cache breaks the model, and windows without it read differently",
        "keep the first tokens in a sliding cache; gated attention or a softmax with an extra zero logit "
        "removes the need",
    ),
    "massive_activations": Text(
        "a few constant, huge coordinates act as a bias and feed attention sinks; they dominate mean "
        "norms and break quantisation and half precision",
        "read the median token's norm, not the mean; keep these coordinates in high precision when "
        "quantising; peri_norm bounds them in a new model",
    ),
    "dead_branches": Text(
        "its parameters cost memory and time and do not change the stream",
        "remove it, or look for zeroed output projections, a gate at zero, or dead activations",
    ),
    "oversized_branch": Text(
        "one branch overwrites the stream, so the layers before it count for little",
        "look at the scale of its output projection; peri_norm or a norm on the branch output bounds it",
    ),
    "duplicated_layers": Text(
        "copies waste depth until training separates them: depth up-scaling that was not trained on, or a "
        "loading mistake",
        "continue training, or remove the copies",
    ),
    "wasted_layers": Text(
        "confirmed by skipping: on this text and loss the layer does nothing that the others do not",
        "remove it (the skip experiment above is the loss without it); in a new model, fewer layers or a scheme that lets "
        "late layers act: normlab compare --schemes pre_norm,ln_scaling,mix_norm",
    ),
    "unbounded_mixing": Text(
        "what the streams carry past the branches is multiplied by this on the way up, and gradients on the way down: "
        "deep hyper-connections become unstable by it",
        "keep the mixing doubly stochastic (normlab schemes show mhc), or no weight decay and a lower learning "
        "rate on the mixing coefficients",
    ),
    "stream_homogenisation": Text(
        "n streams that carry the same vector cost n times the memory for one stream's worth",
        "fewer streams, or check that the residual mixing is applied and doubly stochastic",
    ),
}
