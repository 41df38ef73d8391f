"""The equations integrated: the scalar one, the pairwise gaps (Q = K = V = I), and the particles in general."""
