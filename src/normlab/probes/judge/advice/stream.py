"""Words about the stream, branches, attention and heads."""

from __future__ import annotations

from normlab.probes.judge.advice.words import Words

TEXTS = {
    "broken_residual": Words(
        "stream",
        "every layer behind it reads a stream that no training has seen; what its branches add was still measured, from "
        "what they return",
        "look at the forward of this layer and at hooks on it; where it was meant so, describe the layer: "
        "nl.diagnose(..., roles=LayerRoles(...))",
        normal="equal up to rounding",
    ),
    "uncalled_layers": Words(
        "stream",
        "their weights are loaded and do nothing: the model is shallower than its checkpoint",
        "check the number of layers in the configuration, and the loop over them",
        normal="every layer is called",
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
        "the stream grows while branches do not, so each late layer is a small correction. It is a property of the design "
        "and of how it was trained, and no fault",
        "nothing to repair: no measurement of ours shows yet that another scheme gains by it. To test {others} at your "
        "depth: normlab compare --schemes {compare}",
        {"others": ("ln_scaling", "peri_norm", "block_attn_res")},
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
        "quantising; where branches have no norm on their outputs, one bounds what a layer can write ({bounded})",
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
    "saturated_gates": Words(
        "streams",
        "a sigmoid at its bound passes no gradient: what is open stays open and what is shut stays shut, whatever is learnt",
        "start the gates' biases nearer to zero, and lower their learning rate or decay them",
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
    "repeated_branch": Words(
        "branches",
        "a branch that repeats another does not read its own input: a buffer that was not written anew, a wrong cache",
        "look at what the forward of these branches returns, and at buffers or hooks on them",
        normal="branches that differ",
    ),
    "ffn_mixes_tokens": Words(
        "branches",
        "an FFN that mixes tokens hands a token what belongs to another: shapes were mixed up, or tokens displaced",
        "look at the reshapes and at hooks around it",
        normal="the same for tokens in any order",
    ),
    "broken_norm": Words(
        "branches",
        "layers were trained behind norms that do what their gain says: here they read vectors of another size",
        "look at the forward of this norm and at hooks on it; compare it with the library's own",
        normal="equal up to rounding and eps",
    ),
    "not_its_class": Words(
        "attention",
        "a fresh instance of the same class with the same weights computes something else: a hook, a patched method, another "
        "module or a damaged buffer stands between, and training did not see it unless it stood there too",
        "look at the hooks and the patched methods of this module, at its settings beside the config, and at buffers that no "
        "file stores; or load the weights into a fresh model",
        normal="equal up to rounding",
    ),
    "coarse_arithmetic": Words(
        "stream",
        "the model runs with coarser numbers than its weights have (autocast, activations of eight bits): the same function, "
        "with an error in every product, and differences smaller than that error mean nothing",
        "nothing, if it is meant so; to measure the weights alone, diagnose the model without the wrapper",
        normal="below 0.001; bfloat16 rounds to 0.003, eight bits a token to 0.005 and more",
    ),
    "batch_leaks": Words(
        "attention",
        "rows of a batch are different texts: one that changes another's predictions mixes them, and leaks one user's text",
        "look for a wrong axis (batch and tokens exchanged), a shared cache, or statistics over the whole batch",
        normal="no difference up to rounding",
    ),
    "odd_setting": Words(
        "branches",
        "layers of one class are built in one loop: a setting that some have otherwise comes from an edit, and training did "
        "not see it",
        "set it as in the other layers, or say in the configuration that it is meant so",
        normal="the same in layers of one kind",
    ),
    "norm_eps": Words(
        "branches",
        "a norm with a large eps lets the size of its input through, so tokens and layers are weighted as in no training",
        "set eps as in the model's configuration (1e-6 to 1e-5)",
        normal="far below a percent",
    ),
    "wrong_mask": Words(
        "attention",
        "what a layer may not see it cannot use: the model was trained with another mask",
        "check the mask and the window that the attention implementation is given",
        normal="as the configuration says",
    ),
    "twin_heads": Words(
        "heads",
        "a head that repeats another is a copy: of a bad merge, or of a wrong order of heads",
        "compare the slices of the projections with the checkpoint they came from",
        normal="heads that differ",
    ),
}
