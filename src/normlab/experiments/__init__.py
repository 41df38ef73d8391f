"""Experiments: one file each, on top of training and probes."""
