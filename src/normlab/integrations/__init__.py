"""Callbacks for other people's training loops, and where their numbers go."""
