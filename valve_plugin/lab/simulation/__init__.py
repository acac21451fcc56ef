"""The SIMULATED model: a scripted solver and extractor behind a real HTTP server."""
