"""A campaign of faults: kills, signals, full disks, damaged files and fuzzed input, counted in one table."""
