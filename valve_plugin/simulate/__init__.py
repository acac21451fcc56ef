"""A SIMULATED model for the demo, tests and benchmarks. Nothing here measures a real one."""
