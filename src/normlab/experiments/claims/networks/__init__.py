"""Measurements on small networks, at their start and trained, that decide claims."""
