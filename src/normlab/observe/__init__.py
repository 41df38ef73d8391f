"""Looking at a model: one portrait of its residual path, one timer. Everything above observes with these."""
