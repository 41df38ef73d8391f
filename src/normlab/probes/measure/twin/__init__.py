"""A fresh instance of the model's own class with the same weights: what a patched model is held against."""
