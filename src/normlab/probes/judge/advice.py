"""Why each verdict matters and what to try, in words. The rules that find them are in `rules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Words(NamedTuple):
    """`advice` names schemes by the keys of `schemes`, and all of them, for a command, as {compare}."""

    why: str
    advice: str
    schemes: Mapping[str, tuple[str, ...]] = {}


def advise(id: str, own: str = "") -> str:
    """What to try, for a model that has the scheme `own` already: another one, compared with its own."""
    text = TEXTS[id]
    others = {key: [name for name in names if name != own] for key, names in text.schemes.items()}
    known = {name for each in TEXTS.values() for names in each.schemes.values() for name in names}
    compare = [own if own in known else "pre_norm", *(name for names in others.values() for name in names)]
    words = {key: " or ".join(filter(None, (", ".join(names[:-1]), names[-1]))) for key, names in others.items()}
    return text.advice.format(**words, compare=",".join(dict.fromkeys(compare)))


TEXTS = {
    "non_finite": Words(
        "every number behind it is NaN: the model cannot be used or judged",
        "go back to the last checkpoint with finite weights; look at the loss scale, the learning rate "
        "and the clipping",
    ),
    "exploding_stream": Words(
        "the growth is exponential, not the square root of depth that random branches give: late layers "
        "see only the last few, and half precision overflows",
        "scale residual projections by 1/sqrt(2 L) at initialisation, or use a scheme that bounds the "
        "stream, such as {bounded}; see what it costs and gains with: normlab compare --schemes {compare}",
        {"bounded": ("peri_norm", "post_norm")},
    ),
    "pre_norm_dilution": Words(
        "the stream grows while branches do not, so each late layer is a small correction: depth is paid "
        "for and hardly used",
        "in a new model {others}; compare them at your depth: normlab compare --schemes {compare}",
        {"others": ("ln_scaling", "peri_norm", "block_attn_res")},
    ),
    "gradient_imbalance": Words(
        "one learning rate cannot fit layers whose gradients differ this much: some hardly learn, or others diverge",
        "late-heavy: {late}, or a longer warm-up; early-heavy: {early}. "
        "The map of rates and warm-up for each: normlab stability --schemes {compare}",
        {"late": ("pre_norm", "deep_norm"), "early": ("peri_norm", "ln_scaling")},
    ),
    "representation_collapse": Words(
        "when all tokens are one vector the layers behind cannot tell them apart; attention averages, and "
        "nothing undoes it",
        "less mixing per layer: {others}, qk_norm, or a smaller initial output projection",
        {"others": ("pre_norm", "peri_norm")},
    ),
    "attention_dispersion": Words(
        "uniform attention averages all tokens: nothing is looked up, and its output shrinks with length. "
        "At initialisation this is how attention starts; in a trained model it is a fault",
        "sharper logits: qk_norm with a learned scale, or a smaller norm gain before attention; the effect of {others} "
        "on length: normlab lengthgen --schemes {compare}",
        {"others": ("post_norm", "peri_norm")},
    ),
    "attention_sinks": Words(
        "heads park their weight there when they have nothing to add; common in trained decoders. "
        "Evicting that token from a cache breaks the model, and windows without it read differently",
        "keep the first tokens in a sliding cache; gated attention or a softmax with an extra zero logit "
        "removes the need",
    ),
    "massive_activations": Words(
        "a few constant, huge coordinates act as a bias and feed attention sinks; they dominate mean "
        "norms and break quantisation and half precision",
        "read the median token's norm, not the mean; keep these coordinates in high precision when "
        "quantising; in a new model a norm on the branches' outputs bounds what one layer can write ({bounded})",
        {"bounded": ("peri_norm", "res_norm")},
    ),
    "dead_branches": Words(
        "its parameters cost memory and time and do not change the stream",
        "remove it, or look for zeroed output projections, a gate at zero, or dead activations",
    ),
    "oversized_branch": Words(
        "one branch overwrites the stream, so the layers before it count for little",
        "look at the scale of its output projection; a norm on the branch's output bounds it ({bounded})",
        {"bounded": ("peri_norm", "res_norm")},
    ),
    "duplicated_layers": Words(
        "copies waste depth until training separates them: depth up-scaling that was not trained on, or a "
        "loading mistake",
        "continue training, or remove the copies",
    ),
    "wasted_layers": Words(
        "confirmed by skipping: on this text and loss the layer does nothing that the others do not",
        "remove it (the skip experiment above is the loss without it); in a new model, fewer layers or a scheme that lets "
        "late layers act ({others}): normlab compare --schemes {compare}",
        {"others": ("ln_scaling", "mix_norm")},
    ),
    "unbounded_mixing": Words(
        "what the streams carry past the branches is multiplied by this on the way up, and gradients on the way down: "
        "deep hyper-connections become unstable by it",
        "keep the mixing doubly stochastic (normlab schemes show mhc), or no weight decay and a lower learning "
        "rate on the mixing coefficients",
    ),
    "stream_homogenisation": Words(
        "n streams that carry the same vector cost n times the memory for one stream's worth",
        "fewer streams, or check that the residual mixing is applied and doubly stochastic",
    ),
    "averaging_mixing": Words(
        "each mixing pulls the streams toward their mean, so after a few branches n streams carry one; an mHC whose biases "
        "were never set begins like this, which is what transformers does from scratch",
        "start the mixing near the identity (biases 6I - 3, normlab schemes show mhc), and check a port with normlab verify",
    ),
    "broken_mixing": Words(
        "a mixing that is not doubly stochastic lets the streams grow or shrink with depth",
        "more Sinkhorn steps, Sinkhorn in float32, and normlab verify on the implementation",
    ),
    "closed_write": Words(
        "what the branch computes does not reach any stream: it is paid for and lost, and gets no gradient",
        "look at the gates' biases (0 gives a gate of 1) and at their learning rate",
    ),
    "dead_stream": Words(
        "a stream that carries nothing is memory without use, and its mixing draws the others toward zero",
        "look for write gates of that stream at zero, or use fewer streams",
    ),
    "one_stream_head": Words(
        "what the other streams hold at the end does not reach the output",
        "start the head at the mean of the streams (bias -ln(n-1)); a trained head that reads one stream needs only that one",
    ),
}
