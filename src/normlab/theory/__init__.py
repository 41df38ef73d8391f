"""Closed forms, each checked against numbers in float64."""
