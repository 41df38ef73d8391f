"""Seed 003: tokens on the sphere."""
