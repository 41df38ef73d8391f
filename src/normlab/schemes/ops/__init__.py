"""Operations of the residual path: passes over memory in one piece."""
