"""Where the residual path runs, and hooks or verbs that watch it."""
