"""Ratios measured side by side in one run: `python -m benchmarks` (all), `python -m benchmarks.model` (one)."""
