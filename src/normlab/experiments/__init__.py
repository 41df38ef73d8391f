"""Questions answered by many runs: cells, sweeps over them, comparisons, stability maps."""
