"""Numbers per layer: the stream, attention, weights, gradients, skips."""
