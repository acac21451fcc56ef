"""The seam with mini-SWE-agent: the --plugin option and the instrumentation of agents."""
