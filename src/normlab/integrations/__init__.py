"""Callbacks for other training loops. Each module imports its library; nothing here does."""
