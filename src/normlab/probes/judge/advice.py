"""Why each verdict matters and what to try, in words. The rules that find them are in `rules`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Words(NamedTuple):
    """`advice` names schemes by the keys of `schemes`, and all of them, for a command, as {compare}.

    `normal` is said where no reference model was measured.
    """

    subject: str
    why: str
    advice: str
    schemes: Mapping[str, tuple[str, ...]] = {}
    normal: str = ""


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
        "weights",
        "every number behind it is NaN: the model cannot be used or judged",
        "go back to the last checkpoint with finite weights; look at the loss scale, the learning rate "
        "and the clipping",
    ),
    "exploding_stream": Words(
        "stream",
        "the growth is exponential, not the square root of depth that random branches give: late layers "
        "see only the last few, and half precision overflows",
        "scale residual projections by 1/sqrt(2 L) at initialisation, or use a scheme that bounds the "
        "stream, such as {bounded}; see what it costs and gains with: normlab compare --schemes {compare}",
        {"bounded": ("peri_norm", "post_norm")},
    ),
    "pre_norm_dilution": Words(
        "branches",
        "the stream grows while branches do not, so each late layer is a small correction: depth is paid "
        "for and hardly used",
        "in a new model {others}; compare them at your depth: normlab compare --schemes {compare}",
        {"others": ("ln_scaling", "peri_norm", "block_attn_res")},
    ),
    "gradient_imbalance": Words(
        "gradients",
        "one learning rate cannot fit layers whose gradients differ this much: some hardly learn, or others diverge",
        "late-heavy: {late}, or a longer warm-up; early-heavy: {early}. "
        "The map of rates and warm-up for each: normlab stability --schemes {compare}",
        {"late": ("pre_norm", "deep_norm"), "early": ("peri_norm", "ln_scaling")},
    ),
    "representation_collapse": Words(
        "stream",
        "when all tokens are one vector the layers behind cannot tell them apart; attention averages, and "
        "nothing undoes it",
        "less mixing per layer: {others}, qk_norm, or a smaller initial output projection",
        {"others": ("pre_norm", "peri_norm")},
    ),
    "attention_dispersion": Words(
        "attention",
        "uniform attention averages all tokens: nothing is looked up, and its output shrinks with length. "
        "At initialisation this is how attention starts; in a trained model it is a fault",
        "sharper logits: qk_norm with a learned scale, or a larger norm gain before attention; the effect of {others} "
        "on length: normlab lengthgen --schemes {compare}",
        {"others": ("post_norm", "peri_norm")},
    ),
    "attention_sinks": Words(
        "attention",
        "heads park their weight there when they have nothing to add; common in trained decoders. "
        "Evicting that token from a cache breaks the model, and windows without it read differently",
        "keep the first tokens in a sliding cache; gated attention or a softmax with an extra zero logit "
        "removes the need",
    ),
    "massive_activations": Words(
        "stream",
        "a few constant, huge coordinates act as a bias and feed attention sinks; they dominate mean "
        "norms and break quantisation and half precision",
        "read the median token's norm, not the mean; keep these coordinates in high precision when "
        "quantising; in a new model a norm on the branches' outputs bounds what one layer can write ({bounded})",
        {"bounded": ("peri_norm", "res_norm")},
    ),
    "dead_branches": Words(
        "branches",
        "its parameters cost memory and time and do not change the stream",
        "remove it, or look for zeroed output projections, a gate at zero, or dead activations",
    ),
    "oversized_branch": Words(
        "branches",
        "one branch overwrites the stream, so the layers before it count for little",
        "look at the scale of its output projection; a norm on the branch's output bounds it ({bounded})",
        {"bounded": ("peri_norm", "res_norm")},
    ),
    "duplicated_layers": Words(
        "weights",
        "copies waste depth until training separates them: depth up-scaling that was not trained on, or a "
        "loading mistake",
        "continue training, or remove the copies",
    ),
    "wasted_layers": Words(
        "causal",
        "confirmed by skipping: on this text and loss the layer does nothing that the others do not",
        "remove it (the skip experiment above is the loss without it); in a new model, fewer layers or a scheme that lets "
        "late layers act ({others}): normlab compare --schemes {compare}",
        {"others": ("ln_scaling", "mix_norm")},
    ),
    "unbounded_mixing": Words(
        "stream",
        "what the streams carry past the branches is multiplied by this on the way up, and gradients on the way down: "
        "deep hyper-connections become unstable by it",
        "keep the mixing doubly stochastic (normlab schemes show mhc), or no weight decay and a lower learning "
        "rate on the mixing coefficients",
    ),
    "stream_homogenisation": Words(
        "stream",
        "n streams that carry the same vector cost n times the memory for one stream's worth",
        "fewer streams, or check that the residual mixing is applied and doubly stochastic",
    ),
    "averaging_mixing": Words(
        "streams",
        "each mixing pulls the streams toward their mean, so after a few branches n streams carry one; an mHC whose biases "
        "were never set begins like this, which is what transformers does from scratch",
        "start the mixing near the identity (biases 6I - 3, normlab schemes show mhc), and check a port with normlab verify",
    ),
    "broken_mixing": Words(
        "streams",
        "a mixing that is not doubly stochastic lets the streams grow or shrink with depth",
        "more Sinkhorn steps, Sinkhorn in float32, and normlab verify on the implementation",
    ),
    "closed_write": Words(
        "streams",
        "what the branch computes does not reach any stream: it is paid for and lost, and gets no gradient",
        "look at the gates' biases (0 gives a gate of 1) and at their learning rate",
    ),
    "dead_stream": Words(
        "streams",
        "a stream that carries nothing is memory without use, and its mixing draws the others toward zero",
        "look for write gates of that stream at zero, or use fewer streams",
    ),
    "one_stream_head": Words(
        "streams",
        "what the other streams hold at the end does not reach the output",
        "start the head at the mean of the streams (bias -ln(n-1)); a trained head that reads one stream needs only that one",
    ),
    "worse_than_chance": Words(
        "loss",
        "to score worse than blind guessing a model must be sure of wrong answers: weights, tokenizer and text do "
        "not belong together, or something in it is broken",
        "check that the tokenizer is the model's own; then look at the verdicts above, and at what changed since "
        "the last good checkpoint",
        normal="at or below chance",
    ),
    "at_chance": Words(
        "loss",
        "a model that knows nothing cannot be told from a broken one, and most rules compare with trained models",
        "train it first; if it was trained, check that its weights were loaded",
        normal="well below chance after training",
    ),
    "hardly_trained": Words(
        "training",
        "what layers do at this age says little about what they will do: other findings are notes",
        "come back when the loss is below that of token frequencies",
        normal="below token frequencies after some hundred steps",
    ),
    "miscalibrated": Words(
        "loss",
        "the model is wrong about how much it knows: a wrong scale before the softmax, a text that is not of its "
        "kind, or a broken part",
        "look at the final norm and the head, and at the verdicts above; try a text of its kind",
        normal="the loss is within a fifth of the expected one",
    ),
    "context_unused": Words(
        "loss",
        "more context should help; where it hurts, positions or masks are wrong, or the windows are longer than in"
        " training",
        "check the positions (rotary base and scaling, the table of positions) and the length it was trained on",
        normal="later tokens are easier than early ones",
    ),
    "gain_outlier": Words(
        "weights",
        "a gain scales all that a branch reads or writes: attention logits grow with its square",
        "compare the norm with the checkpoint it came from; check the loader (some models store gain - 1)",
        normal="within three times the layers around",
    ),
    "gain_pattern": Words(
        "weights",
        "coordinates that one layer alone amplifies, drops or turns round are the mark of a bad edit or a wrong "
        "conversion",
        "compare the norm with the checkpoint it came from",
        normal="as in the layers around",
    ),
    "reset_gain": Words(
        "weights",
        "training moves every gain; one that stands at its first value belongs to a layer that was started anew or"
        " not loaded",
        "check that every tensor of this layer is in the checkpoint, and that it was not frozen",
        normal="gains that vary by a few percent",
    ),
    "matrix_outlier": Words(
        "weights",
        "entries of another size than in all layers around: scaled, started anew, or merged wrongly",
        "compare the matrix with the checkpoint it came from",
        normal="within 2.5 times the layers around",
    ),
    "row_outlier": Words(
        "weights",
        "one unit that outweighs all others writes, or reads, for the whole layer",
        "compare the matrix with the checkpoint it came from",
        normal="as in the layers around",
    ),
    "zero_weights": Words(
        "weights",
        "units and heads that are zero cost time and memory and do nothing; trained weights are never exactly zero",
        "look for pruning, a failed load, or a mask that was written into the weights",
        normal="no zero rows or columns",
    ),
    "low_rank": Words(
        "weights",
        "a matrix of low rank lets only a few directions through",
        "look for a low-rank merge or a compression that was too strong",
        normal="as in the layers around",
    ),
    "unsettled_weights": Words(
        "weights",
        "a trained model sits where no parameter gains by being scaled; one that would was changed after training, or "
        "training was cut off or broke down",
        "compare the parameter with the checkpoint it came from; if nothing was changed, train on at a lower rate",
        normal="a pull near 0",
    ),
    "expert_outlier": Words(
        "experts",
        "an expert of another scale outvotes the others of its layer, or says nothing",
        "compare the expert with the checkpoint it came from",
        normal="within three times the other experts",
    ),
    "unused_experts": Words(
        "experts",
        "an expert that is never chosen is memory without use, and the others carry its load",
        "look at the router's weights; in training, a load-balancing loss",
        normal="every expert gets a share",
    ),
    "embedding_scale": Words(
        "embeddings",
        "when the embedding is far larger than what branches add, the model is its first layer; when far smaller, "
        "tokens are lost",
        "check the embedding's scale (some models multiply by sqrt(d)) against the checkpoint it came from",
        normal="between 1/60 and 12 times what a branch adds",
    ),
    "embedding_rows": Words(
        "embeddings",
        "tokens that the embedding does not tell apart are the same token to all layers",
        "compare the embedding with the checkpoint it came from; look for rows that were added and not trained",
        normal="rows of like size in many directions",
    ),
    "positions": Words(
        "embeddings",
        "rotary positions work only with the frequencies of training",
        "rebuild the model from its configuration: the frequencies are computed, not learnt",
        normal="base^(-2 i / width)",
    ),
    "final_norm": Words(
        "final_norm",
        "the last gain sets the scale of the logits: how sure the model is of what it says",
        "compare the final norm with the checkpoint it came from",
        normal="a loss about as large as the model expects",
    ),
    "sees_the_future": Words(
        "attention",
        "a model that sees the next token does not predict it: its loss is too good, and it fails when it writes",
        "check the causal mask and the attention implementation",
        normal="no change at all",
    ),
    "attention_outlier": Words(
        "attention",
        "one layer that looks everywhere alike, or at one place only, among layers that do not, has logits of "
        "another scale",
        "look at its query and key projections and at the norm before them",
        normal="as in the layers around",
    ),
    "head_outlier": Words(
        "heads",
        "a head that is silent is unused, and one that is loud writes over the others",
        "look at its slice of the value and output projections",
        normal="heads of one layer write about as much",
    ),
    "undersized_branch": Words(
        "branches",
        "a branch that adds far less than those around it does little of its share",
        "look at the scale of its output projection and of the norms around it",
        normal="as in the layers around",
    ),
    "stream_jump": Words(
        "stream",
        "behind a jump, everything written before it counts for little",
        "look at the branch of this layer that adds most; a norm on its output bounds it",
        normal="steps of like size",
    ),
    "harmful_layers": Words(
        "causal",
        "confirmed by skipping: the model is better without it",
        "look at this layer first: weights that were not loaded, scaled, or exchanged",
        normal="a loss that rises without the layer",
    ),
}
