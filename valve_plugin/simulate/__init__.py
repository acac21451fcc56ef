"""A scripted model server: a SIMULATION of solver and extractor for demo, tests and benchmarks."""
