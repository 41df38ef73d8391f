"""A diagnosis for people: terminal, figures, one HTML page."""
