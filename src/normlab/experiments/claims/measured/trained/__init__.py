"""Measurements on networks that are trained for them: by length, and by the loss at the end."""
