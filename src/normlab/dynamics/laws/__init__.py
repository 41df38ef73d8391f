"""Closed forms, and how a law is read off a curve."""
