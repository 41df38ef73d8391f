"""Measure any Transformer where it runs: hooks on the original modules, metrics, verdicts. Knows no scheme of ours."""
