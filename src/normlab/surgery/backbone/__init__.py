"""Your architecture as the ground of a comparison: small random models of it, with a scheme swapped into each."""
