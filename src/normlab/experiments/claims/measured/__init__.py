"""The functions that measure claims, one file a subject. Each is found by itself (see `bench.measure`)."""
