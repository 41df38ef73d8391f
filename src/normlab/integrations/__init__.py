"""Callbacks for other people's training loops. Each module imports its library; nothing here does."""
