"""What a layer adds up, read from its arithmetic."""
