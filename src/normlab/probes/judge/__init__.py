"""From numbers to verdicts: rules, limits, words."""
