"""From outside to a model and its batches: hub, packages, texts, images, losses."""
