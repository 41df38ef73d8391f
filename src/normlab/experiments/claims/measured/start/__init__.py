"""Claims that need no long training: algebra, closed forms, networks at initialisation."""
