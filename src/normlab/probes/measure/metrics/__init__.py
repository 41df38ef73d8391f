"""Pure functions from tensors to numbers; each is tested against a closed form."""

from normlab.probes.measure.metrics.activations import median_magnitude, nonfinite, top_magnitude
from normlab.probes.measure.metrics.attention import max_weight, normalised_entropy, sink, visible_keys
from normlab.probes.measure.metrics.stream import (
    angular_distance,
    block_influence,
    cosine,
    exponential_rate,
    growth_exponent,
    token_norms,
)
from normlab.probes.measure.metrics.streams import (
    composite_gain,
    effective_sources,
    effective_streams,
    homogenisation,
    largest_share,
    mixing_error,
    mixing_gain,
    mixing_keeps,
    smallest_stream,
)
from normlab.probes.measure.metrics.tokens import effective_rank, token_cosine, token_variance

__all__ = [
    "angular_distance",
    "block_influence",
    "composite_gain",
    "cosine",
    "effective_rank",
    "effective_sources",
    "effective_streams",
    "exponential_rate",
    "growth_exponent",
    "homogenisation",
    "largest_share",
    "max_weight",
    "median_magnitude",
    "mixing_error",
    "mixing_gain",
    "mixing_keeps",
    "nonfinite",
    "normalised_entropy",
    "sink",
    "smallest_stream",
    "token_cosine",
    "token_norms",
    "token_variance",
    "top_magnitude",
    "visible_keys",
]
