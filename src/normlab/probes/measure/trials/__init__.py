"""Undo an accident on trial: exchange, turn, scale, and see whether the loss falls. A healthy model never gains by it.

A trial changes the model for the time of a few passes and is taken back exactly.
"""
