"""Words about weights, experts, embeddings and the final norm."""

from __future__ import annotations

from normlab.probes.judge.advice.words import Words

TEXTS = {
    "non_finite": Words(
        "weights",
        "every number behind it is NaN: the model cannot be used or judged",
        "go back to the last checkpoint with finite weights; look at the loss scale, the learning rate "
        "and the clipping",
    ),
    "duplicated_layers": Words(
        "weights",
        "copies waste depth until training separates them: depth up-scaling that was not trained on, or a "
        "loading mistake",
        "check how the checkpoint was read; where the copies are meant, train on, or remove them: normlab prune MODEL "
        "--layers NUMBERS --heal 200",
    ),
    "copied_scales": Words(
        "weights",
        "rows of trained matrices have lengths of their own; two layers with the same ones were scaled by one set, as "
        "where weights of few bits are read with the scales of another layer",
        "look at the order of the scales in the file that the weights were read from",
        normal="lengths that differ from layer to layer",
    ),
    "copied_matrices": Words(
        "weights",
        "no training makes two matrices equal: a name was mapped twice, or one layer's part was loaded into another",
        "compare the names in the checkpoint with those in the loader",
        normal="matrices that differ",
    ),
    "one_direction": Words(
        "weights",
        "whatever the layer reads, it answers along one line: an adapter was merged with the wrong scale, or a row repeats",
        "check the scale (alpha / rank) of what was merged, and that it was merged once",
        normal="below 30 % in trained models, a few percent in wide ones",
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
    "few_values": Words(
        "weights",
        "a layer with a handful of values was rounded more coarsely than the others: a quantisation that went wrong",
        "compare the layer with the checkpoint it came from; check bits, block size and scales of the quantisation",
        normal="as many different values as in the layers around",
    ),
    "spectrum_outlier": Words(
        "weights",
        "training lifts a few directions of a matrix out of the noise; where they are missing, or stick out alone, "
        "the matrix may have been started anew, or changed afterwards",
        "check that every tensor of this layer is in the checkpoint; compare the matrix with the one it came from",
        normal="as in the layers around",
    ),
    "tails_outlier": Words(
        "weights",
        "entries of another distribution than in all layers around may have been clipped, rounded, pruned or overwritten",
        "compare the matrix with the checkpoint it came from",
        normal="as in the layers around",
    ),
    "misfit": Words(
        "weights",
        "a trained matrix is turned toward what it reads; one that is not may belong to another layer, another model "
        "or another order of coordinates",
        "check that the layer comes from this checkpoint, and the order of heads and units in the conversion",
        normal="as in the layers around",
    ),
    "copied_experts": Words(
        "experts",
        "experts that are copies do the work of one: an upcycled model that was not trained on, or a loading mistake",
        "continue training with noise on the router, or check how the experts were read",
        normal="experts that differ",
    ),
}
