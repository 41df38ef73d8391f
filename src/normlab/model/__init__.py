"""The Transformer that every scheme drives."""

from normlab.model.attention import Attention, Cache
from normlab.model.config import TransformerConfig
from normlab.model.layers import FeedForward
from normlab.model.transformer import Transformer

__all__ = ["Attention", "Cache", "FeedForward", "Transformer", "TransformerConfig"]
