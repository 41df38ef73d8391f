"""`normlab watch`: a live local page over running sweeps and trainings. It reads, and writes nothing."""
