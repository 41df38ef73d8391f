"""Small networks at their start and trained, and the training itself."""
