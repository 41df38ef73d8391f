"""Plain words for what has a name in code: verdicts, columns, kinds of branches, subjects."""

from __future__ import annotations

from normlab.probes.judge.verdicts import Verdict

SEVERITY = {"bad": "Fault", "warn": "Warning", "note": "Note"}

# Names that a reader would stumble over; the others are their ids with spaces.
_VERDICTS = {
    "non_finite": "numbers that are not finite",
    "broken_residual": "a layer that is not what its architecture says",
    "worse_than_frequencies": "worse than the frequencies of tokens",
    "coarse_arithmetic": "products rounded coarsely",
    "not_its_class": "a part that computes something else than its class",
    "batch_leaks": "rows of a batch that are mixed",
    "uncalled_layers": "layers that are never called",
    "broken_norm": "a norm that does not norm",
    "odd_setting": "a setting unlike the other layers'",
    "ffn_mixes_tokens": "an FFN that mixes tokens",
    "repeated_branch": "branches that add the same",
    "one_direction": "one direction outweighs a matrix",
    "copied_scales": "scales that two layers share",
    "copied_matrices": "a matrix that two layers hold",
    "pre_norm_dilution": "diluted late layers",
    "wrong_gradient": "a backward pass that is wrong",
    "gain_outlier": "a norm's gain unlike its neighbours'",
    "gain_pattern": "odd entries in a norm's gain",
    "reset_gain": "a norm's gain at its first value",
    "matrix_outlier": "a matrix unlike its neighbours",
    "row_outlier": "one row or column outweighs the others",
    "low_rank": "a matrix of low rank",
    "expert_outlier": "an expert unlike the others",
    "head_outlier": "a head unlike the others",
    "attention_outlier": "attention unlike its neighbours'",
    "attention_dispersion": "attention spread evenly",
    "oversized_branch": "an oversized branch",
    "undersized_branch": "an undersized branch",
    "stream_jump": "a jump of the stream",
    "stream_homogenisation": "parallel streams alike",
    "one_stream_head": "the head reads one stream",
    "better_changed": "a mistake that was undone on trial",
    "helping_change": "a change that helps and is not the cause",
    "unknown_cause": "a loss whose cause was not found",
    "quickly_repaired": "a few steps of training repair it",
    "miscalibrated": "wrong about how much it knows",
    "context_unused": "context that does not help",
    "final_norm": "the final norm",
    "embedding_scale": "the embedding's size",
    "embedding_rows": "rows of the embedding",
    "unsettled_weights": "weights that training had not settled",
}

# Label of a column and its unit; everything is a mean over tokens unless it says otherwise.
_COLUMNS = {
    "layer": "layer",
    "attention_norm": "attention: length of what it adds",
    "attention_ratio": "attention / stream",
    "attention_cosine": "attention: cosine to the stream",
    "attention_typical": "attention / stream, median token",
    "ffn_norm": "FFN: length of what it adds",
    "ffn_ratio": "FFN / stream",
    "ffn_cosine": "FFN: cosine to the stream",
    "ffn_typical": "FFN / stream, median token",
    "block_influence": "turn of the stream, 1 - cosine",
    "norm": "stream length, mean",
    "norm_median": "stream length, median token",
    "nonfinite": "numbers that are not finite",
    "token_cosine": "cosine between tokens",
    "token_cosine_robust": "cosine between tokens, without the 3 largest coordinates",
    "token_variance": "share of the stream that differs between tokens",
    "median_magnitude": "median |coordinate|",
    "massive": "massive coordinates",
    "effective_rank": "effective rank of the tokens",
    "rms": "stream RMS",
    "max_magnitude": "largest |coordinate|",
    "max_position": "largest: at token",
    "max_coordinate": "largest: coordinate",
    "angular_distance": "angle / pi, last token",
    "homogenisation": "cosine between streams",
    "mixing_gain": "gain of the mixing",
    "composite_gain": "gain of all mixings so far",
    "effective_sources": "sources that are read",
    "attention_output_rms": "attention output RMS",
    "entropy": "attention entropy / log n",
    "max_weight": "largest attention weight",
    "sink_mass": "attention on one key",
    "sink_position": "that key's position",
    "sink_heads": "share of heads with a sink",
    "gradient_norm": "gradient of the layer",
    "gradient_rms": "gradient RMS",
    "attention_gradient": "gradient of attention",
    "ffn_gradient": "gradient of the FFN",
    "stream_gradient": "gradient of the stream",
    "skip_loss_change": "loss without it, change in nats",
}
_BRANCHES = {"ffn": "FFN", "cross_attention": "cross-attention", "cross": "cross-attention"}


def verdict_name(verdict: Verdict | str) -> str:
    id = verdict if isinstance(verdict, str) else verdict.id
    return _VERDICTS.get(id, id.replace("_", " "))


def column(name: str) -> str:
    return _COLUMNS.get(name, name.replace("_", " "))


def branch(kind: str) -> str:
    return _BRANCHES.get(kind, kind.replace("_", " "))


_SUBJECTS = {"causal": "skipped layers"}


def subject(name: str) -> str:
    return _SUBJECTS.get(name, name.replace("_", " "))


def parameters(count: int) -> str:
    return f"{count / 1e6:.4g}M parameters" if count >= 1_000_000 else f"{count:,} parameters"
